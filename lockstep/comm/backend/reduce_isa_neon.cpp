#define LOCKSTEP_ISA isa_neon
#define LOCKSTEP_NEON
#include "lockstep/comm/backend/reduce_isa.h"
