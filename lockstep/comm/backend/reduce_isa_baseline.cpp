#define LOCKSTEP_ISA isa_baseline
#include "lockstep/comm/backend/reduce_isa.h"
