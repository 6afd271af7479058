#define LOCKSTEP_ISA isa_avx512
#include "lockstep/comm/reduce_isa.h"
