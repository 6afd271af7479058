// Parameters that lie once per memory: that of a host, which all its ranks share, or that of a
// rank's device; and their exchange between these memories. Not used directly: see
// zero_optimizer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/work.h"

namespace lockstep::inline v0::internal {

// The number of ranks of each host, by the hosts' order in the group; hosts[r] is rank r's. nullopt
// where the ranks of a host are not consecutive.
std::optional<std::vector<int>> ranks_by_host(std::span<const int> hosts);

// A bucket's parameters, and the part of them that stays: a part of `whole` or, on a device, memory
// of its own, so that `whole` can be freed.
struct KeptFlat {
  at::Tensor whole, own;
};

// Every function is collective unless it says otherwise. A "host" is a group of ranks that share a
// memory: on devices each rank is one.
class HostCopy {
 public:
  // copies[r]: the copy that rank r shares. In the memory of hosts, ranks of one host only; empty:
  // its host's. On devices each copy is divided among equally many consecutive ranks; empty: one,
  // among all. Returns null where the engine has no such memory, or ranks_by_host() returns
  // nullopt. Throws InvalidArgument for other copies.
  static std::unique_ptr<HostCopy> make(Communicator& comm, std::span<const int> copies = {});
  virtual ~HostCopy() = default;
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  // Whether each rank is a host, and the ranks' exchanges run on streams.
  virtual bool apart() const = 0;
  // Whether this is the rank with whose values its host starts.
  virtual bool writes() const = 0;
  virtual int sharers() const = 0;           // ranks of this host
  virtual int hosts() const = 0;             // hosts that divide a copy
  virtual int keepers() const { return 1; }  // hosts that keep the same part of divided copies
  virtual Communicator& parts() { return comm_; }  // all ranks, in the order of their parts
  // Zeroed memory. `comes_and_goes`: keep(), claim() and release() will be called for it.
  virtual at::Tensor empty(int64_t numel, at::ScalarType dtype, bool comes_and_goes) = 0;
  // Gives all hosts the values that rank 0 has written into each of these; returns when all may
  // read them.
  virtual void spread(std::span<const at::Tensor> flats) = 0;
  // Every rank has written its part of each, of size() equal parts; returns when all may read the
  // whole.
  virtual void publish(std::span<const at::Tensor> flats) = 0;

  // For memory that is fetched a part at a time, among several hosts: the part that this host
  // keeps. Does not communicate.
  virtual KeptFlat keep(const at::Tensor& flat) const = 0;
  // This rank's part, where it is kept. Does not communicate.
  virtual at::Tensor own_part(const KeptFlat& flat) const = 0;
  // Every rank has written its part: returns when the hosts' kept parts have the values.
  virtual void join(std::span<const KeptFlat> /*flats*/) {}
  // The whole may have been written to. Does not communicate.
  virtual void take_back(const KeptFlat& /*flat*/) const {}
  // Starts to fetch the values that other hosts have written, on the rank that writes(); does
  // nothing on the others. `what` identifies the call when the hosts' calls are compared.
  virtual std::vector<Work> start_fetch(std::span<const KeptFlat> flats,
                                        const std::string& what) = 0;
  // All ranks of this host have arrived by the same path: `what` is the place, and `way` a hash of
  // everything that the rank did before. Throws Mismatch.
  virtual void meet(const std::string& /*what*/, uint64_t /*way*/) {}
  // Allocate memory again for the others' values, or release it: earlier work of the current stream
  // may still use it. One rank's call applies to the host. They do not communicate.
  virtual void claim(const at::Tensor& /*flat*/) const {}
  virtual void release(const at::Tensor& flat) const noexcept = 0;
  // Ends all exchanges among the hosts and among this host's ranks. Does not communicate.
  virtual void abort(const std::string& reason) noexcept = 0;

 protected:
  explicit HostCopy(Communicator& comm) : comm_(comm) {}

  Communicator comm_;
};

}  // namespace lockstep::inline v0::internal
