#define LOCKSTEP_ISA isa_baseline
#define LOCKSTEP_ISA_NAME "baseline"
#include "lockstep/kernels/internal/isa_table.h"
