// Included already (cuda_emu.h).
