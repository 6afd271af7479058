#define LOCKSTEP_ISA isa_avx2
#include "lockstep/comm/backend/reduce_isa.h"
