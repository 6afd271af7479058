#define LOCKSTEP_ISA isa_avx2
#include "lockstep/comm/reduce_isa.h"
