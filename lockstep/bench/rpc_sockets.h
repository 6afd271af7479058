// The bounds of `lockstep bench rpc`: sockets without calls, and memcpy. No libtorch.
#pragma once

#include "lockstep/bench/rpc_work.h"

namespace lockstep::inline v0::bench {

// Two processes and one blocking connection: a Unix socket for the variant "unix", TCP for "tcp".
// add() is a ping-pong of 32 bytes; a tensor goes from its memory into memory that the server has
// touched before, and eight bytes come back.
RpcSides socket_sides();

// One process without a server, which copies a tensor to memory that was touched before.
RpcSides memcpy_sides();

}  // namespace lockstep::inline v0::bench
