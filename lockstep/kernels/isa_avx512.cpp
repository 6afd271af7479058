#define LOCKSTEP_ISA isa_avx512
#define LOCKSTEP_ISA_NAME "avx512"
#include "lockstep/kernels/internal/isa_table.h"
