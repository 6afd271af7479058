// Lockstep's C interface (C11; also C++): communicators, collectives, and TorchScript models that
// train on all ranks. A program links lockstep::c. The Fortran module of fortran/ stands on it.
//
// - Every function returns a lockstep_status, but for those that return a constant text or number.
//   No C++ exception leaves a function. After an error, out-parameters are unchanged unless said
//   so.
// - Handles (lockstep_comm and so on) are opaque. No type of libtorch is part of this interface.
// - Option structs begin with their size, so that fields can be added: start from the macro of the
//   struct's name in capitals.
#ifndef LOCKSTEP_C_LOCKSTEP_H
#define LOCKSTEP_C_LOCKSTEP_H

#include "lockstep/c/base.h"
#include "lockstep/c/communicator.h"
#include "lockstep/c/model.h"
#ifndef LOCKSTEP_NO_SITES
#include "lockstep/c/sites.h"
#endif

#endif  // LOCKSTEP_C_LOCKSTEP_H
