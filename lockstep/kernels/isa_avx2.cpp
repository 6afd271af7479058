#define LOCKSTEP_ISA isa_avx2
#define LOCKSTEP_ISA_NAME "avx2"
#include "lockstep/kernels/internal/isa_table.h"
