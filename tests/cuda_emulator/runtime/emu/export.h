// Makes a kernel callable from outside: its parameters as type strings, and a thunk that takes them as an array of pointers.
#pragma once
#include <type_traits>
#include <utility>
#include "half.h"

namespace emu {

template <class T> struct TypeName { static constexpr const char* text = "?"; };
#define EMU_TYPE(T, name) template <> struct TypeName<T> { static constexpr const char* text = name; };
EMU_TYPE(void, "v") EMU_TYPE(float, "f4") EMU_TYPE(double, "f8") EMU_TYPE(__half, "f2") EMU_TYPE(__nv_bfloat16, "b2")
EMU_TYPE(char, "i1") EMU_TYPE(signed char, "i1") EMU_TYPE(short, "i2") EMU_TYPE(int, "i4") EMU_TYPE(long, "i8") EMU_TYPE(long long, "i8")
EMU_TYPE(unsigned char, "u1") EMU_TYPE(unsigned short, "u2") EMU_TYPE(unsigned, "u4") EMU_TYPE(unsigned long, "u8")
EMU_TYPE(unsigned long long, "u8")
#undef EMU_TYPE

template <class A> struct ArgumentName {
  static const char* text() { return TypeName<std::remove_cv_t<A>>::text; }
};
template <class A> struct ArgumentName<A*> {
  static const char* text() {
    static char spelled[8];
    snprintf(spelled, sizeof spelled, "*%s%s", std::is_const_v<A> ? "c" : "", TypeName<std::remove_cv_t<A>>::text);
    return spelled;
  }
};

template <class F> struct Entry;
template <class... A> struct Entry<void (*)(A...)> {
  static constexpr int num_arguments = sizeof...(A);
  static const char* const* types() {
    static const char* const names[] = {ArgumentName<std::remove_cv_t<A>>::text()..., nullptr};
    return names;
  }
  template <auto KERNEL> struct Of {
    template <size_t... I> __attribute__((no_sanitize("thread"))) static void call(void** arguments, std::index_sequence<I...>) {
      KERNEL(*reinterpret_cast<std::remove_cv_t<A>*>(arguments[I])...);
    }
    __attribute__((no_sanitize("thread"))) static void thunk(void** arguments) { call(arguments, std::index_sequence_for<A...>{}); }
  };
};

static const KernelDescription* first_kernel;
struct Registration {
  KernelDescription description;
  Registration(const char* name, void (*thunk)(void**), int n, const char* const* types, int max_threads)
      : description{name, thunk, n, types, max_threads, first_kernel} { first_kernel = &description; }
};

}  // namespace emu

#define EMU_EXPORT(kernel, max_threads)                                                                    \
  static emu::Registration emu_registered_##kernel(#kernel, &emu::Entry<decltype(&kernel)>::Of<&kernel>::thunk, \
                                                   emu::Entry<decltype(&kernel)>::num_arguments,            \
                                                   emu::Entry<decltype(&kernel)>::types(), max_threads);
#define EMU_MODULE extern "C" EMU_API const emu::KernelDescription* emu_kernels() { return emu::first_kernel; }
