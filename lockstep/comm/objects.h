// Objects among ranks: any JSON value, of any size, in the forms of the collectives.
//
// An object travels as its length (one int64) and then its bytes, CBOR (RFC 8949). Numbers, NaN and
// infinity included, and binary values arrive unchanged. Received data is never executed or
// trusted: bytes that are not CBOR, or that claim more than kMaxObjectBytes, are DataError, and the
// communicator stays usable (after a refused length its bytes are still on their way: a later
// receive of the same tag gets them). Larger objects, or objects nested deeper than
// kMaxObjectDepth, are refused with InvalidArgument on the rank that gives them, before anything is
// sent; the other ranks then wait for it. Errors, threads and sites are otherwise as in
// communicator.h.
//
// Use it for configurations, metrics and names; tensors have faster paths.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

inline constexpr int64_t kMaxObjectBytes = int64_t{1} << 30;  // encoded
// Arrays and objects may be nested this deep.
inline constexpr int kMaxObjectDepth = 512;

// Point to point. Matched by peer and tag, in order, among other messages of that tag.
LOCKSTEP_API void send_object(Communicator& comm, const nlohmann::json& object, int dst,
                              int tag = 0, Communicator::Site site = Communicator::Site::current());
LOCKSTEP_API nlohmann::json recv_object(Communicator& comm, int src, int tag = 0,
                                        Communicator::Site site = Communicator::Site::current());

// Returns the root's object on every rank; `object` is ignored elsewhere.
// Collective: all ranks call it.
LOCKSTEP_API nlohmann::json broadcast_object(
    Communicator& comm, const nlohmann::json& object, int root,
    Communicator::Site site = Communicator::Site::current());

// Returns part r of the root's `objects`, one per rank, on rank r; `objects` is ignored elsewhere.
// Collective: all ranks call it.
LOCKSTEP_API nlohmann::json scatter_object(Communicator& comm,
                                           const std::vector<nlohmann::json>& objects, int root,
                                           Communicator::Site site = Communicator::Site::current());

// Return all ranks' objects in rank order: gather_object on the root, and an empty list elsewhere;
// all_gather_object on all ranks.
// Collective: all ranks call it.
LOCKSTEP_API std::vector<nlohmann::json> gather_object(
    Communicator& comm, const nlohmann::json& object, int root,
    Communicator::Site site = Communicator::Site::current());
LOCKSTEP_API std::vector<nlohmann::json> all_gather_object(
    Communicator& comm, const nlohmann::json& object,
    Communicator::Site site = Communicator::Site::current());

}  // namespace lockstep::inline v0
