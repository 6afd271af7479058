// Communicator: a group of ranks and the operations among them.
//
// Common to all operations:
// - Collective: every rank of the group calls the same operation, with the same arguments but for
//   the data, in the same order.
// - Tensors are dense, of a dtype of is_supported_dtype(). Empty and non-contiguous ones are fine;
//   the latter are copied. "Parts" are taken along dim 0. Outputs never alias inputs unless said so.
// - Devices: a communicator whose capabilities().device is not the CPU (nccl) has two engines. The
//   device's carries what has a tensor on a device, from and to the device that it names; the other
//   one, which init() would choose for a job on CPUs, carries the host's tensors, barriers, objects
//   and what else ranks agree on, and never touches a device. So all ranks' tensors of one call are
//   of the host, or all are of devices; each engine sees its calls in the same order on all ranks,
//   and ranks that wait for each other in both get Mismatch as those that do in different groups.
//   What breaks one of the two breaks both. A communicator on the CPU copies tensors of devices to
//   it and back.
// - Reductions: see ReduceOp. float16 and bfloat16 are summed in float32 where the capabilities say
//   `float32_accumulation`, or the engine cannot sum them as they are (all but nccl, which rounds
//   partial sums to their 16 bits). On backends whose capabilities say `deterministic`, the result
//   has the same bits on every rank and in every run.
// - The plain forms block: they return when this rank's part is done; results may be read, inputs
//   reused. The i-forms never block; what is pending progresses inside every later call on this
//   communicator and inside every wait on any communicator of the same init(), and neither inputs
//   nor outputs may be touched until the wait is over.
// - On a device whose capabilities say `stream_ordered` (nccl), "over" is a matter of its streams:
//   the plain forms and Work::wait() return once the device has been given the operation, and what
//   the caller's current stream is given from then on comes after it. The host waits where a tensor
//   is copied to the device or from it, and in Work::test(). An operation that then fails on the
//   device, or lasts longer than its wait was given, breaks the communicator: the next call says
//   so, what waits for the device is let go, and the results hold anything. Who decides by a result
//   on the host reduces a tensor on the CPU.
// - Errors: InvalidArgument comes before anything is sent and leaves the communicator as it was;
//   Timeout, PeerLost and Mismatch break it (core/errors.h).
// - After a break the tensors of the calls under way hold anything. They are the caller's again, to
//   read, fill and give back, but for one case: on backends shm and hierarchical, where ranks of a
//   host write into each other's tensors, a rank that was stopped (SIGSTOP, a debugger) for longer
//   than two seconds in the very middle of that may, when it goes on, still change up to 1 MiB of
//   them (of symmetric ones all), once. Go on with copies after a Timeout that names a stopped
//   rank. Such memory is not reused for anything else, also when the tensors and the communicator
//   are gone: it stays with the process, with a warning.
// - Threads: one at a time; a second one inside a call gets InvalidArgument. Only abort() may be
//   called from any thread at any time.
// - Site: the last argument is the caller's source line, for error messages. Leave it out.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/capabilities.h"
#include "lockstep/comm/types.h"
#include "lockstep/comm/work.h"
#include "lockstep/core/deadline.h"

namespace lockstep {

class Backend;
struct GroupOrigin;
namespace trace {
class CallBoard;
}

// Where a rank stands. "Local" is among the ranks of the same host ("node").
struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node_rank = 0;
};

// What this rank has called so far.
struct CommunicatorStats {
  struct Calls {
    uint64_t calls = 0;
    // Payload: of a message, of the tensor that is reduced or broadcast, of all ranks' parts together;
    // of all_to_all what this rank sends. Not what an algorithm makes of it.
    uint64_t bytes = 0;
  };
  uint64_t collectives = 0;  // all but sends and receives
  std::array<Calls, kOpCount> by_op = {};

  const Calls& of(Op op) const { return by_op[static_cast<size_t>(op)]; }
};

class Communicator;

struct CommunicatorOptions {
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);  // of every wait
  // Where the rank shows its calls to the agent and to whoever else looks; may be null.
  std::shared_ptr<trace::CallBoard> board = nullptr;
  int board_rank = -1;  // this rank's place on the board; -1: its local rank
  // Called once when an error breaks the communicator, with its message, inside it; on a device
  // perhaps on a thread of the communicator's own. Must not throw, nor use or drop the communicator.
  std::function<void(const std::string& reason)> on_broken = nullptr;
  // Kept until the communicator goes: a store that this rank serves, say.
  std::shared_ptr<void> keep = nullptr;
  // How it makes further groups (group_maker.h); null: it makes none.
  std::shared_ptr<GroupOrigin> origin = nullptr;
  // Of the job's ranks, where those that die are replaced (reformation.h); null: they are not, or
  // this is a group of some.
  std::function<Communicator(Deadline)> reform = nullptr;
  int64_t generation = 0;
  // Of Communicator::device(); nullopt: the engine's.
  std::optional<at::Device> device = std::nullopt;
};

// A handle: copies mean the same group. The group lives as long as a handle or a Work of it; when
// the last one of a rank goes, its peers' pending and later waits on that rank throw PeerLost.
// Destruction does not communicate; on a device it waits for what that was given.
class Communicator final {
 public:
  using Site = lockstep::Site;

  // For backends; users call lockstep::init() or testing::run_threads(). `host`: the host's engine
  // beside one whose memory is a device's; its options then have an origin.
  Communicator(std::unique_ptr<Backend> backend, Topology topology, CommunicatorOptions options,
               std::unique_ptr<Backend> host = nullptr);

  int rank() const;
  int size() const;  // also world_size(), as torch.distributed says
  int world_size() const { return size(); }
  int local_rank() const;  // among the ranks of this host
  int local_size() const;
  int node_rank() const;  // which host
  // What this rank trains on: the device that init() was asked for; where it was asked for none,
  // that of the engine, capabilities().device: the CPU, but for nccl.
  at::Device device() const;
  const Capabilities& capabilities() const;
  // Of the engine that carries the host's tensors: another one where capabilities().device is not
  // the CPU.
  const Capabilities& host_capabilities() const;
  // How an operation is done here, on tensors of capabilities().device: by the engine, composed, or
  // not at all. `v_form`: with unequal parts.
  Support support(Op op, at::ScalarType dtype, ReduceOp reduce = ReduceOp::kSum,
                  bool v_form = false) const;
  CommunicatorStats stats() const;
  // Seconds that this rank was in calls and waits that block, so far, in all communicators of the same
  // init(), the transfers included: what is left of a step is the rank's own work. Where operations end
  // on a device's stream, only what the host waits. From any thread.
  double waited() const;
  std::chrono::nanoseconds timeout() const;

  // Returns once all ranks have called. It orders hosts, not devices: what another rank gave its
  // device before may still be under way there. Collective.
  void barrier(Site site = Site::current());
  Work ibarrier(Site site = Site::current());

  // Copies the root's `tensor` into everybody's. Collective.
  void broadcast(const at::Tensor& tensor, int root, Site site = Site::current());
  Work ibroadcast(const at::Tensor& tensor, int root, Site site = Site::current());

  // Reduces all ranks' `tensor` element by element into the root's; the others' stay untouched.
  // Collective.
  void reduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum,
              Site site = Site::current());
  Work ireduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum,
               Site site = Site::current());

  // Reduces all ranks' `tensor` element by element, in place, everywhere. Collective.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                  Site site = Site::current());
  Work iall_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                   Site site = Site::current());
  // For libraries: `note` says which of their calls it is; ranks whose notes differ get Mismatch.
  Work iall_reduce(const at::Tensor& tensor, ReduceOp op, const CallNote& note,
                   Site site = Site::current());

  // An uninitialised contiguous tensor in memory that all ranks of this host have mapped: several
  // times faster in collectives on backend shm, since peers read and write it in place. Where the
  // engine has no such memory, an ordinary tensor, of capabilities().device. It is freed like any
  // tensor, at any time after the calls that use it, on any thread, also after the communicator;
  // views and slices of it are as fast. Mapped once by every rank and counted once; populated here,
  // so make it once and keep it. Collective: the same shape and dtype on all ranks. Throws
  // SystemError on all ranks when one has no memory left.
  at::Tensor symmetric_empty(at::IntArrayRef shape, at::ScalarType dtype,
                             Site site = Site::current());

  // A zeroed contiguous tensor whose memory is one for all ranks of this host (local_size()): what
  // one writes, the others read, once a barrier or another operation among them has come in
  // between. Who writes where is the callers' agreement; two at one place are a race. No argument
  // of a collective: all ranks' would be the same memory. Freed as symmetric_empty()'s, its pages
  // when the last rank has let go. Collective: the same shape and dtype on all ranks. Throws
  // InvalidArgument where the host's engine has no such memory (host_capabilities().shared_memory:
  // local, shm and hierarchical have it); SystemError on all ranks when one has no memory left.
  at::Tensor shared_empty(at::IntArrayRef shape, at::ScalarType dtype, Site site = Site::current());

  // Concatenates the ranks' tensors of one shape [k, ...] along dim 0, in rank order: [size * k,
  // ...] (a 0-dim tensor counts as [1]). gather: on the root; the others get an undefined tensor.
  // Collective.
  at::Tensor gather(const at::Tensor& tensor, int root, Site site = Site::current());
  at::Tensor all_gather(const at::Tensor& tensor, Site site = Site::current());
  // `output` as returned by the forms above; ignored but on the root for gather. iall_gather and
  // iall_gatherv take as `tensor` also this rank's own part of `output`, for a gather in place.
  Work igather(const at::Tensor& output, const at::Tensor& tensor, int root,
               Site site = Site::current());
  Work iall_gather(const at::Tensor& output, const at::Tensor& tensor, Site site = Site::current());

  // The same with parts that differ in dim 0. Without `counts` the blocking forms exchange them
  // first (one small all_gather); counts[r] is rank r's size along dim 0, the same vector on all
  // ranks. Collective.
  at::Tensor gatherv(const at::Tensor& tensor, int root, Site site = Site::current());
  at::Tensor all_gatherv(const at::Tensor& tensor, Site site = Site::current());
  Work igatherv(const at::Tensor& output, const at::Tensor& tensor, std::span<const int64_t> counts,
                int root, Site site = Site::current());
  Work iall_gatherv(const at::Tensor& output, const at::Tensor& tensor,
                    std::span<const int64_t> counts, Site site = Site::current());

  // Splits the root's `input` [size * k, ...] along dim 0 and puts part r into rank r's `output`
  // [k, ...]. `input` is ignored but on the root (pass {} there). Collective.
  void scatter(const at::Tensor& output, const at::Tensor& input, int root,
               Site site = Site::current());
  Work iscatter(const at::Tensor& output, const at::Tensor& input, int root,
                Site site = Site::current());
  // With parts of counts[r] rows, the same vector on all ranks; output has counts[rank] rows.
  // Collective.
  void scatterv(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> counts,
                int root, Site site = Site::current());
  Work iscatterv(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> counts,
                 int root, Site site = Site::current());

  // Reduces all ranks' `input` [size * k, ...] and gives rank r part r, [k, ...]. Collective.
  at::Tensor reduce_scatter(const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                            Site site = Site::current());
  Work ireduce_scatter(const at::Tensor& output, const at::Tensor& input,
                       ReduceOp op = ReduceOp::kSum, Site site = Site::current());
  // With parts of counts[r] rows, the same vector on all ranks. Collective.
  at::Tensor reduce_scatterv(const at::Tensor& input, std::span<const int64_t> counts,
                             ReduceOp op = ReduceOp::kSum, Site site = Site::current());
  Work ireduce_scatterv(const at::Tensor& output, const at::Tensor& input,
                        std::span<const int64_t> counts, ReduceOp op = ReduceOp::kSum,
                        Site site = Site::current());

  // Sends part r of `input` [size * k, ...] to rank r; returns the parts received, in rank order,
  // [size * k, ...]. Collective.
  at::Tensor all_to_all(const at::Tensor& input, Site site = Site::current());
  Work iall_to_all(const at::Tensor& output, const at::Tensor& input, Site site = Site::current());
  // Sends send_counts[r] rows to rank r, receives recv_counts[r] rows from it. Without recv_counts
  // they are exchanged first.
  at::Tensor all_to_allv(const at::Tensor& input, std::span<const int64_t> send_counts,
                         Site site = Site::current());
  Work iall_to_allv(const at::Tensor& output, const at::Tensor& input,
                    std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                    Site site = Site::current());

  // Point to point. A message is matched by peer and tag (>= 0), in order among equal ones; dtype
  // and number of elements must agree (Mismatch). send returns when the tensor may be reused, which
  // may be before it is received; a send that finds no receiver and no room waits. Not collective;
  // a rank may send to itself if the receive is posted (irecv) or the tensor is small.
  void send(const at::Tensor& tensor, int dst, int tag = 0, Site site = Site::current());
  void recv(const at::Tensor& tensor, int src, int tag = 0, Site site = Site::current());
  Work isend(const at::Tensor& tensor, int dst, int tag = 0, Site site = Site::current());
  Work irecv(const at::Tensor& tensor, int src, int tag = 0, Site site = Site::current());
  // What a receive of `tag` from `src` would find now, behind the receives already posted; for
  // receives from whoever sends first; of the host's messages. Never blocks. Throws PeerLost if it
  // would find nothing and the rank is dead, InvalidArgument where the capabilities lack `probe`.
  Probe probe(int src, int tag = 0);

  // Makes progress on whatever is pending, in all communicators of the same init(); never blocks.
  // For hooks inside a long computation.
  void progress();

  // Breaks the communicator on all ranks, as far as the engine reaches: their waits throw PeerLost
  // with `reason`. From any thread, also while another is inside a call of this communicator, as a
  // watchdog is: that call, if it waits, throws PeerLost too, within some tenths of a second (on
  // backends gloo, mpi and nccl a wait for a message excepted, which ends at its deadline), and
  // leaves its tensors as after any other failure. Waits at most a second for that call to end.
  // Duplicates of this communicator, which libraries have made of it, are aborted with it.
  void abort(const std::string& reason) noexcept;

  // Further groups of the same ranks. Each is a communicator of its own, with its own engine,
  // memory, sequence numbers and errors: one that breaks leaves the others as they were, and all
  // may be used at once. Ranks may wait on several groups in any order, since a wait on one moves
  // what is under way in the others; only what has not been called is not moved. Ranks that wait
  // for each other's calls in different groups, which no wait can end, get Mismatch on those groups
  // some seconds later (half a minute where it is a group's first call), with the place of each;
  // not where a rank uses communicators from several threads, of which another may still call.
  // While groups are made nothing is moved. A group's memory is taken as it is used: before that,
  // it costs some tens of KiB a rank (tests measure it).
  // Ranks count from 0 in each; local and node ranks are those among its members. Backend and
  // time-out are this one's. Collective over this communicator, non-members included: all return
  // once every group is made, or all throw, and this communicator stays usable. Throw
  // InvalidArgument also where this communicator cannot make groups, and on all ranks when they
  // asked for different things.
  //
  // split: one group for each color, its ranks in order of `key`, equal keys in order of rank. A
  // rank with a negative color is in none and gets nullopt.
  std::optional<Communicator> split(int color, int key = 0, Site site = Site::current());
  // subgroup: one group of the ranks listed, in that order; the same list on all ranks. A rank that
  // is not listed gets nullopt.
  std::optional<Communicator> subgroup(const std::vector<int>& ranks, Site site = Site::current());
  // How each of its ranks is called in errors, beside its number in the job: "data 1, tensor 0". Of this handle's group
  // and of those that are made of it later; each rank for itself, sends nothing. Throws InvalidArgument for another
  // number of titles than ranks. Without effect where it cannot make groups.
  void name_ranks(std::vector<std::string> titles);
  // duplicate: a second group of all ranks, for a library that must not get between its caller's
  // calls.
  Communicator duplicate(Site site = Site::current());
  // Throws what this communicator, or a duplicate of it, or of that one, has broken with. Sends nothing: of what breaks
  // on a device later than its wait, the others hear on the communicator that it was called on.
  void throw_if_broken() const;

  // A new communicator of the ranks that are left, in the same order and renumbered, after
  // PeerLost, Timeout or Mismatch broke this one, or when nothing did. Every survivor calls it,
  // whatever error it saw; this communicator is broken afterwards (shrink aborts it first, so that
  // ranks that still wait learn of the failure). Either all ranks of the new group return it, or
  // all of them throw.
  //
  // The protocol, over the job's store: each survivor announces itself. It proposes the announced
  // ranks as members once every other rank is announced or known to be dead, or at half of the
  // deadline; the first proposal in the store wins, for everybody. The members then make the group
  // and say so in the store; the first outcome written there, "made" by a rank that saw all of them
  // succeed or a reason by one that saw a failure or the deadline, is everybody's. A rank that
  // arrives after the proposal is not a member and gets PeerLost. A further call closes the earlier
  // attempts before it begins, so that no two of them can both make a group. A deadline of seconds
  // is in place: a rank that is stopped or stuck holds the others up for half of it, a dead one
  // does not where the engine knows who is dead.
  //
  // Throws PeerLost (not a member, or a member died meanwhile: call shrink again), StoreError (the
  // store went with the rank that served it: init_method tcp:// and rank 0), Timeout (the store
  // does not answer), InvalidArgument (this communicator cannot make groups).
  Communicator shrink(Deadline deadline);

  // A new communicator of all ranks of the job, with the ranks and the size that they had, after an
  // error broke this one and the launcher has started anew who died (lockstep run --on-failure
  // replace). Every survivor calls it on the communicator that init() or an earlier reform()
  // returned, whatever error it saw; this one is broken afterwards (reform aborts it first, so that
  // ranks that still wait learn of the failure). A rank that was started anew calls init(), which
  // meets them. Either all ranks return the new generation or, when one dies on the way, all of them
  // wait for its successor. Nothing else of the job is restored: groups, symmetric memory and the
  // state of training are made anew by whoever had them (recover/recovery.h).
  //
  // Throws Timeout that names the ranks that have not come (call it again, or end the process), Mismatch that names one of
  // this host that has ended with exit code 0 and so will not come, StoreError (the job's store does not answer), InvalidArgument (nobody is started anew here, or
  // this is a group of the job's ranks).
  Communicator reform(Deadline deadline);
  // Of the job's ranks as they met here: rises with every reform(); 0 where nobody is started anew.
  int64_t generation() const;

  class Impl;

 private:
  std::optional<Communicator> make_group(int kind, uint64_t signature, int color, int key,
                                         Site site);

  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
