#define LOCKSTEP_ISA isa_avx512
#include "lockstep/comm/backend/reduce_isa.h"
