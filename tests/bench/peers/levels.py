"""The peers compiled for one of our levels of the instruction set, so that a newer processor can hold the contest of an older one.

Both peers have one switch per extension, the fork fewer: it ignores what it does not know, and gets the rest as compiler flags.
"""

from pathlib import Path

V3 = ("GGML_SSE42", "GGML_AVX", "GGML_AVX2", "GGML_FMA", "GGML_F16C", "GGML_BMI2")
V4 = (*V3, "GGML_AVX512")
VNNI = (*V4, "GGML_AVX512_VNNI")
ON = {
    "base": (),
    "x86-64-v3": V3,
    "x86-64-v3-avxvnni": (*V3, "GGML_AVX_VNNI"),
    "x86-64-v4": V4,
    "x86-64-v4-vnni": VNNI,
    "x86-64-v4-amx": (*VNNI, "GGML_AMX_TILE", "GGML_AMX_INT8"),
}  # fmt: skip
# All of them, so that a level says "off" too: the defaults differ between releases.
SWITCHES = ("GGML_NATIVE", *ON["x86-64-v4-amx"], "GGML_AVX_VNNI", "GGML_AVX512_VBMI", "GGML_AVX512_BF16", "GGML_AMX_BF16")
COMPILER = {
    "GGML_BMI2": "-mbmi2",
    "GGML_AVX_VNNI": "-mavxvnni",
    "GGML_AVX512": "-mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl",
}  # what the fork has no switch for, or a narrower one; its fast kernels ask for all of AVX-512's
ARM = {"base": "armv8-a", "neon": "armv8-a", "neon-dotprod": "armv8.2-a+dotprod", "neon-i8mm": "armv8.2-a+dotprod+i8mm"}
LEVELS = tuple(dict.fromkeys((*ON, *ARM)))


def cmake_flags(level: str, *, arm: bool) -> tuple[str, ...]:
    if arm:
        march = f"-march={ARM[level]}"
        return ("-DGGML_NATIVE=OFF", f"-DGGML_CPU_ARM_ARCH={ARM[level]}", f"-DCMAKE_C_FLAGS={march}", f"-DCMAKE_CXX_FLAGS={march}")
    switches = [f"-D{name}={'ON' if name in ON[level] else 'OFF'}" for name in SWITCHES]
    flags = " ".join(COMPILER[name] for name in ON[level] if name in COMPILER)
    return (*switches, f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}")


def build_mismatch(folder: Path, level: str, best: str) -> str | None:
    """Why a build that is there is not one for `level`; None if it is. `best`: the machine's own level, that of a native build.

    FileNotFoundError if the folder does not say how it was configured.
    """
    cache = folder / "CMakeCache.txt"
    if not cache.is_file():
        raise FileNotFoundError(f"{folder} has no CMakeCache.txt: whether it was built for {level} cannot be known")
    lines = dict(line.split("=", 1) for line in cache.read_text().splitlines() if ":BOOL=" in line)
    values = {name.partition(":")[0]: value for name, value in lines.items()}
    if values.get("GGML_NATIVE") == "ON":
        return None if level == best else f"{folder} was built for this machine (GGML_NATIVE=ON), which has {best}, not {level}"
    wanted = ON.get(level, ())
    for name in SWITCHES:
        if name in values and (values[name] == "ON") != (name in wanted):
            return f"{folder} was built with {name}={values[name]}, which is not {level}"
    return None
