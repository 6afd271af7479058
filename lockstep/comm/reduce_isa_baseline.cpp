#define LOCKSTEP_ISA isa_baseline
#include "lockstep/comm/reduce_isa.h"
