#define LOCKSTEP_ISA isa_neon
#define LOCKSTEP_ISA_NAME "neon"
#define LOCKSTEP_NEON
#include "lockstep/kernels/internal/isa_table.h"
