// Faults of a kernel thread become reports of the launch, and so does a kernel that does not end.
//
// The signal handler makes the thread go on in `land`, high on its own stack, which is abandoned anyway; from there `fail`
// leaves for the launching code. Signals of anything but a kernel thread go to whoever handled them before (pytest's
// faulthandler).
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstring>

#include "runtime.h"

namespace emu {
namespace {

const int FAULTS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
constexpr int NUM_FAULTS = 4;
const int TIMER = SIGRTMAX - 3;
constexpr long RETRY_NS = 5000000;  // while the time-out finds the thread outside of the kernel's own code

struct sigaction previous[NUM_FAULTS], previous_timer;
stack_t previous_stack;
volatile int fault;
volatile uintptr_t fault_address;

void land() {
  if (fault == TIMER) fail_if_out_of_time();
  if (fault == SIGFPE) fail("integer division by zero");
  if (fault == SIGILL) fail("illegal instruction (__trap or code that cannot be reached)");
  uintptr_t address = fault_address, stack = (uintptr_t)stack_of(context.current), dynamic = (uintptr_t)dynamic_region;
  if (address >= stack && address < stack + PAGE) fail("stack overflow: more than %zu bytes of local variables in a thread", STACK - PAGE);
  if (address >= dynamic && address < dynamic + MAX_DYNAMIC + PAGE)
    fail("illegal access beyond the dynamic shared memory: byte %ld of %u", (long)(address - (uintptr_t)context.dynamic_shared),
         context.dynamic_bytes);
  fail("illegal memory access at %p", (void*)address);
}

void redirect(ucontext_t* at) {
  uintptr_t top = ((uintptr_t)stack_of(context.current) + STACK - 8192) & ~(uintptr_t)63;
#if defined(__x86_64__)
  at->uc_mcontext.gregs[REG_RSP] = (greg_t)(top - 8);
  at->uc_mcontext.gregs[REG_RIP] = (greg_t)land;
#elif defined(__aarch64__)
  at->uc_mcontext.sp = top;
  at->uc_mcontext.pc = (uintptr_t)land;
#endif
}

uintptr_t program_counter(const ucontext_t* at) {
#if defined(__x86_64__)
  return (uintptr_t)at->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  return at->uc_mcontext.pc;
#endif
}

void on_fault(int signal, siginfo_t* info, void* at) {
  if (!running) {
    for (int i = 0; i < NUM_FAULTS; i++)
      if (FAULTS[i] == signal) sigaction(signal, &previous[i], nullptr);  // returning faults again, into the previous handler
    return;
  }
  fault = signal;
  fault_address = (uintptr_t)info->si_addr;
  redirect((ucontext_t*)at);
}

void on_timer(int signal, siginfo_t*, void* at) {
  if (!running) return;
  out_of_time = true;  // seen at the next barrier or collective, if it comes before the next try
  uintptr_t pc = program_counter((ucontext_t*)at);
  if (pc < launch->image_low || pc >= launch->image_high) return;  // in the runtime or in libc, which must not be left in the middle
  fault = signal;
  redirect((ucontext_t*)at);
}

// A timer of this thread's own CPU time.
timer_t thread_timer() {
  static thread_local timer_t timer;
  static thread_local bool made;
  if (!made) {
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = TIMER;
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    made = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0;
  }
  return timer;
}

void set_timer(double seconds) {
  struct itimerspec spec;
  memset(&spec, 0, sizeof spec);
  spec.it_value.tv_sec = (time_t)seconds;
  spec.it_value.tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9);
  if (seconds > 0) spec.it_interval.tv_nsec = RETRY_NS;
  timer_settime(thread_timer(), 0, &spec, nullptr);
}

struct sigaction handler(void (*function)(int, siginfo_t*, void*)) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = function;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  return action;
}

}  // namespace

FaultGuard::FaultGuard() {
  static char stack[1 << 16];  // for the handler: the fiber's own may be what overflowed. One launch at a time.
  stack_t alternative = {stack, 0, sizeof stack};
  sigaltstack(&alternative, &previous_stack);
  struct sigaction faults = handler(on_fault), timer = handler(on_timer);
  for (int i = 0; i < NUM_FAULTS; i++) sigaction(FAULTS[i], &faults, &previous[i]);
  sigaction(TIMER, &timer, &previous_timer);
  set_timer(launch->limit_s);
}

FaultGuard::~FaultGuard() {
  set_timer(0);
  for (int i = 0; i < NUM_FAULTS; i++) sigaction(FAULTS[i], &previous[i], nullptr);
  sigaction(TIMER, &previous_timer, nullptr);
  if (previous_stack.ss_flags & SS_DISABLE) previous_stack.ss_size = MINSIGSTKSZ;
  sigaltstack(&previous_stack, nullptr);
}

}  // namespace emu
