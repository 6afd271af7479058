// The addresses of an rpc's processes: their entries in the store, "rpc/NAME". Not a public header.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rpc/peer.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0::rpc::internal {

// The deadline, in seconds, of the last requests to the store: its server may have stopped.
inline constexpr double kFarewell = 1;

struct Entry {
  Peer peer;
  std::string host_identity;
  std::string local;             // name of the abstract Unix socket
  std::vector<std::string> tcp;  // "address:port", the likeliest first

  std::string encode() const;
  // nullopt for "": the process has left. Throws StoreError.
  static std::optional<Entry> decode(const std::string& text);
};

std::string entry_key(const std::string& name);
// The store's entry for the name, "" if there is none. Throws StoreError, Timeout.
std::string look_up(Store& store, const std::string& name, Deadline deadline);

// The addresses by which others reach a socket that listens on `listen`.
std::vector<std::string> addresses_of(const std::string& listen, uint16_t port);

// Listens on an abstract Unix socket with a new name, which is stored in `name`. Throws
// SystemError.
UniqueFd listen_local(std::string& name);

// One attempt to connect: over the Unix socket where both are on one host, otherwise over TCP. The
// descriptor is empty if no process listens there (any more) or, with `silent`, if the host does
// not answer or cannot be reached yet. Throws SystemError if this process has no socket for it.
struct Attempt {
  UniqueFd fd;
  bool local = false;
  bool silent = false;
  std::string error;                    // that of the last address
  std::optional<SystemError> hopeless;  // set if no later attempt can reach it either
};
Attempt try_connect(const Entry& entry, const std::string& own_host_identity, Deadline deadline);

// Prepares a socket of a link between hosts: small messages are sent at once, and a host that
// vanished is noticed within seconds.
void prepare_tcp(int fd);

// Puts the entry into the store. Throws InvalidArgument if another living process has the name;
// StoreError; Timeout.
void claim_name(Store& store, const Entry& entry, const Secret& secret, Deadline deadline);
// Removes the entry if it is still there.
void give_up_name(Store& store, const Entry& entry) noexcept;

}  // namespace lockstep::inline v0::rpc::internal
