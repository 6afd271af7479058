// Names the caller's line in errors: each call of a function below is preceded by lockstep_site().
// lockstep.h includes it; define LOCKSTEP_NO_SITES before, and it does not. A function's address,
// and a name in parentheses, are the function itself.
#ifndef LOCKSTEP_C_SITES_H
#define LOCKSTEP_C_SITES_H

#include "lockstep/c/base.h"

// clang-format off
#define lockstep_comm_split(...) (lockstep_site(__FILE__, __LINE__), lockstep_comm_split(__VA_ARGS__))
#define lockstep_comm_duplicate(...) (lockstep_site(__FILE__, __LINE__), lockstep_comm_duplicate(__VA_ARGS__))
#define lockstep_barrier(...) (lockstep_site(__FILE__, __LINE__), lockstep_barrier(__VA_ARGS__))
#define lockstep_all_reduce(...) (lockstep_site(__FILE__, __LINE__), lockstep_all_reduce(__VA_ARGS__))
#define lockstep_broadcast(...) (lockstep_site(__FILE__, __LINE__), lockstep_broadcast(__VA_ARGS__))
#define lockstep_reduce(...) (lockstep_site(__FILE__, __LINE__), lockstep_reduce(__VA_ARGS__))
#define lockstep_gather(...) (lockstep_site(__FILE__, __LINE__), lockstep_gather(__VA_ARGS__))
#define lockstep_all_gather(...) (lockstep_site(__FILE__, __LINE__), lockstep_all_gather(__VA_ARGS__))
#define lockstep_scatter(...) (lockstep_site(__FILE__, __LINE__), lockstep_scatter(__VA_ARGS__))
#define lockstep_reduce_scatter(...) (lockstep_site(__FILE__, __LINE__), lockstep_reduce_scatter(__VA_ARGS__))
#define lockstep_all_to_all(...) (lockstep_site(__FILE__, __LINE__), lockstep_all_to_all(__VA_ARGS__))
#define lockstep_send(...) (lockstep_site(__FILE__, __LINE__), lockstep_send(__VA_ARGS__))
#define lockstep_recv(...) (lockstep_site(__FILE__, __LINE__), lockstep_recv(__VA_ARGS__))
#define lockstep_all_reduce_start(...) (lockstep_site(__FILE__, __LINE__), lockstep_all_reduce_start(__VA_ARGS__))
#define lockstep_broadcast_start(...) (lockstep_site(__FILE__, __LINE__), lockstep_broadcast_start(__VA_ARGS__))
#define lockstep_isend(...) (lockstep_site(__FILE__, __LINE__), lockstep_isend(__VA_ARGS__))
#define lockstep_irecv(...) (lockstep_site(__FILE__, __LINE__), lockstep_irecv(__VA_ARGS__))
#define lockstep_broadcast_arrays(...) (lockstep_site(__FILE__, __LINE__), lockstep_broadcast_arrays(__VA_ARGS__))
#define lockstep_average_arrays(...) (lockstep_site(__FILE__, __LINE__), lockstep_average_arrays(__VA_ARGS__))
// clang-format on

#endif  // LOCKSTEP_C_SITES_H
