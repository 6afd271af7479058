#define LOCKSTEP_ISA isa_baseline
#define LOCKSTEP_ISA_NAME "baseline"
#include "lockstep/kernels/isa_table.h"
