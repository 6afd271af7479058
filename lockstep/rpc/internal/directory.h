// Where processes of an rpc are: their entries in the store, "rpc/NAME". Not a public header.
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
#include "lockstep/rpc/internal/transport.h"
#include "lockstep/store/store.h"

namespace lockstep::rpc::internal {

// How long the store is asked at the end, in seconds: its server may have stopped.
inline constexpr double kFarewell = 1;

struct Entry {
  Peer peer;
  std::string host_identity;
  std::string local;             // name of the abstract Unix socket
  std::vector<std::string> tcp;  // "address:port", the likeliest first

  std::string encode() const;
  // nullopt for "": it has gone. Throws StoreError.
  static std::optional<Entry> decode(const std::string& text);
};

std::string entry_key(const std::string& name);
// What the store has for the name, "" for nothing. Throws StoreError, Timeout.
std::string look_up(Store& store, const std::string& name, Deadline deadline);

// By which addresses others reach a socket that listens on `listen`.
std::vector<std::string> addresses_of(const std::string& listen, uint16_t port);

// Listens on an abstract Unix socket of a new name, which `name` is set to. Throws SystemError.
UniqueFd listen_local(std::string& name);

// One attempt to connect: over the Unix socket where both are on one host, else over TCP. An empty descriptor: nobody
// listens there (any more), or, `silent`, the host does not answer, or is not reached yet. Throws SystemError: this process
// has no socket for it.
struct Attempt {
  UniqueFd fd;
  bool local = false;
  bool silent = false;
  std::string error;                    // of the last address
  std::optional<SystemError> hopeless;  // no later attempt reaches it either
};
Attempt try_connect(const Entry& entry, const std::string& own_host_identity, Deadline deadline);

// For a socket of a link between hosts: small messages at once, and a host that vanished is noticed within seconds.
void prepare_tcp(int fd);

// Puts the entry into the store. Throws InvalidArgument: another process that lives has the name; StoreError; Timeout.
void claim_name(Store& store, const Entry& entry, const Secret& secret, Deadline deadline);
// Takes it out if it is still there.
void give_up_name(Store& store, const Entry& entry) noexcept;

}  // namespace lockstep::rpc::internal
