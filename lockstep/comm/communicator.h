// Communicator: a group of ranks and the operations among them.
//
// Common to all operations:
// - Collective: every rank of the group calls the same operation, with the same arguments but for
//   the data, in the same order.
// - Tensors are dense, of a dtype of is_supported_dtype(). Empty and non-contiguous ones are fine;
//   the latter are copied. "Parts" are taken along dim 0. Outputs alias inputs only where said.
// - Devices: a communicator whose capabilities().device is not the CPU (nccl) has two engines. The
//   device engine carries calls with a tensor on a device, to and from the device that it names.
//   The host engine, which init() would choose for a job on CPUs, carries the host's tensors,
//   barriers, objects and whatever else ranks agree on, and never touches a device. All ranks'
//   tensors of one call are therefore on the host, or all are on devices. Each engine sees its
//   calls in the same order on all ranks; ranks that wait for each other in both engines get
//   Mismatch, as ranks in different groups do. An error that breaks one engine breaks both. A
//   communicator on the CPU copies tensors of devices to the host and back.
// - Reductions: see ReduceOp. float16 and bfloat16 are summed in float32 where the capabilities say
//   `float32_accumulation`, or where the engine cannot sum them directly (every engine except nccl,
//   which rounds partial sums to 16 bits). On backends whose capabilities say `deterministic`, the
//   result has the same bits on every rank and in every run.
// - The plain forms block: they return when this rank's part is done; results may be read and
//   inputs reused. The i-forms never block. Pending operations progress inside every later call on
//   this communicator and inside every wait on any communicator of the same init(); neither inputs
//   nor outputs may be touched until the wait has returned.
// - On a device whose capabilities say `stream_ordered` (nccl), completion is ordered by streams:
//   the plain forms and Work::wait() return once the device has been given the operation, and later
//   work of the caller's current stream comes after it. The host waits where a tensor is copied to
//   or from the device, and in Work::test(). An operation that then fails on the device, or exceeds
//   its wait's deadline, breaks the communicator: the next call throws, work that waits on the
//   device is released, and the results are undefined. A program whose host code depends on a
//   result reduces a tensor on the CPU.
// - Errors: InvalidArgument comes before anything is sent and leaves the communicator as it was;
//   Timeout, PeerLost and Mismatch break it (core/errors.h).
// - After a break the contents of pending calls' tensors are undefined. The caller owns them again
//   and may read, fill and free them, with one exception. On backends shm and hierarchical, ranks
//   of a host write into each other's tensors. A rank that was stopped (SIGSTOP, a debugger) for
//   longer than two seconds in the middle of such a write may, once it resumes, still change up to
//   1 MiB of them once (all of a symmetric tensor). After a Timeout that names a stopped rank,
//   continue with copies. That memory is not reused even after the tensors and the communicator are
//   gone: the process keeps it, with a warning.
// - Threads: one at a time; a second thread inside a call gets InvalidArgument. Only abort() may be
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
#include <utility>
#include <vector>

#include "lockstep/comm/backend/capabilities.h"
#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/work.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

class Backend;
struct GroupOrigin;
namespace trace {
class CallBoard;
}

// The place of a rank in its job. "Local" counts the ranks of the same host ("node").
struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node_rank = 0;
};

// The calls of this rank so far.
struct CommunicatorStats {
  // The calls of one operation.
  struct Calls {
    uint64_t calls = 0;
    // Payload bytes: of a message, of the tensor that is reduced or broadcast, or of all ranks'
    // parts together; for all_to_all, the bytes that this rank sends. The traffic of the algorithm
    // is not counted.
    uint64_t bytes = 0;
  };
  uint64_t collectives = 0;  // all but sends and receives
  std::array<Calls, kOpCount> by_op = {};

  // Those of one operation.
  const Calls& of(Op op) const { return by_op[static_cast<size_t>(op)]; }
};

class Communicator;

// For those who make a Communicator of a backend; users give InitOptions.
struct LOCKSTEP_API CommunicatorOptions {
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);  // of every wait
  // The board on which the rank shows its calls to the agent and other observers; may be null.
  std::shared_ptr<trace::CallBoard> board = nullptr;
  int board_rank = -1;  // this rank's place on the board; -1: its local rank
  // Called once, inside the communicator, when an error breaks it, with the error's message; on a
  // device perhaps on one of the communicator's own threads. It must not throw, nor use or destroy
  // the communicator.
  std::function<void(const std::string& reason)> on_broken = nullptr;
  // Kept alive as long as the communicator, for example a store that this rank serves.
  std::shared_ptr<void> keep = nullptr;
  // How the communicator makes further groups (group_maker.h); null: it makes none.
  std::shared_ptr<GroupOrigin> origin = nullptr;
  // For the communicator of all ranks of a job that replaces ranks that die (reformation.h). Null:
  // the job replaces none, or this is a smaller group.
  std::function<Communicator(Deadline)> reform = nullptr;
  // The result of Communicator::generation().
  int64_t generation = 0;
  // The result of Communicator::device(); nullopt: the engine's device.
  std::optional<at::Device> device = std::nullopt;
};

// A shared handle; copies refer to the same group. The group lives as long as a handle or a Work of
// it. When a rank's last handle goes, its peers' pending and later waits on that rank throw
// PeerLost. The destructor does not communicate; on a device it waits for the operations that the
// device was given.
class LOCKSTEP_API Communicator final {
 public:
  using Site = lockstep::Site;

  // For backends; users call lockstep::init() or testing::run_threads(). `host`: the host's engine,
  // beside a `backend` whose memory is a device's; the options then have an origin.
  Communicator(std::unique_ptr<Backend> backend, Topology topology, CommunicatorOptions options,
               std::unique_ptr<Backend> host = nullptr);

  int rank() const;                          // this rank's number, from 0
  int size() const;                          // also world_size(), as torch.distributed says
  int world_size() const { return size(); }  // the same as size()
  int local_rank() const;                    // among the ranks of this host
  int local_size() const;                    // their number
  int node_rank() const;                     // which host
  // The device on which this rank trains: the one that init() was asked for; otherwise that of the
  // engine, capabilities().device, which is the CPU except for nccl.
  at::Device device() const;
  // The abilities of the engine; the same on all ranks.
  const Capabilities& capabilities() const;
  // Capabilities of the engine that carries the host's tensors: a second engine where
  // capabilities().device is not the CPU.
  const Capabilities& host_capabilities() const;
  // How an operation is done here on tensors of capabilities().device: natively, composed, or not
  // at all. `v_form`: with unequal parts.
  Support support(Op op, at::ScalarType dtype, ReduceOp reduce = ReduceOp::kSum,
                  bool v_form = false) const;
  // The calls of this rank so far.
  CommunicatorStats stats() const;
  // Those of all communicators of the same init() that this rank has used, also of those that are
  // gone: of duplicates that DistributedDataParallel and others have made, too.
  // Thread-safety: any thread.
  CommunicatorStats job_stats() const;
  // Seconds that this rank has spent in blocking calls and waits, transfers included, over all
  // communicators of the same init(); the rest of a step is the rank's own work. Where operations
  // end on a device's stream, only the host's waits count.
  // Thread-safety: any thread.
  double waited() const;
  // The flight recorder's board, on which this rank's calls are recorded over all communicators of
  // the same init(), and the rank's place on it. Null: they are not recorded.
  // Thread-safety: any thread.
  std::pair<std::shared_ptr<trace::CallBoard>, int> call_board() const;
  // CommunicatorOptions::timeout.
  std::chrono::nanoseconds timeout() const;

  // Returns once all ranks have called it. It orders hosts, not devices: work that another rank
  // gave its device earlier may still be pending there.
  // Collective: all ranks call it.
  void barrier(Site site = Site::current());
  Work ibarrier(Site site = Site::current());

  // Copies the root's `tensor` into that of every rank.
  // Collective: all ranks call it.
  void broadcast(const at::Tensor& tensor, int root, Site site = Site::current());
  Work ibroadcast(const at::Tensor& tensor, int root, Site site = Site::current());

  // Reduces all ranks' `tensor` element by element into the root's; the others' stay unchanged.
  // Collective: all ranks call it.
  void reduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum,
              Site site = Site::current());
  Work ireduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum,
               Site site = Site::current());

  // Reduces all ranks' `tensor` element by element, in place, on every rank.
  // Collective: all ranks call it.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                  Site site = Site::current());
  Work iall_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                   Site site = Site::current());
  // For libraries: `note` identifies the library's own call; ranks whose notes differ get Mismatch.
  Work iall_reduce(const at::Tensor& tensor, ReduceOp op, const CallNote& note,
                   Site site = Site::current());

  // An uninitialised contiguous tensor in memory that all ranks of this host have mapped.
  // Collectives on backend shm are several times faster with it, since peers read and write it in
  // place. Where the engine has no such memory, this is an ordinary tensor of
  // capabilities().device. It may be freed like any tensor, at any time after the calls that use
  // it, on any thread, even after the communicator; views and slices of it are as fast. It is
  // populated here, so allocate it once and keep it. Each rank maps it once and it counts once.
  // Collective: all ranks call it with the same shape and dtype.
  // Throws: SystemError on all ranks when one has no memory left.
  at::Tensor symmetric_empty(at::IntArrayRef shape, at::ScalarType dtype,
                             Site site = Site::current());

  // A zeroed contiguous tensor whose memory all ranks of this host share (local_size()). A rank's
  // writes are visible to the others after a barrier or another operation among them. The callers
  // agree on who writes where; two writers at one place are a race. It must not be an argument of a
  // collective, since all ranks' tensors would be the same memory. It is freed as
  // symmetric_empty()'s; its pages are freed when the last rank has released it.
  // Collective: all ranks call it with the same shape and dtype.
  // Throws: InvalidArgument where the host's engine has no such memory
  // (host_capabilities().shared_memory: local, shm and hierarchical have it); SystemError on all
  // ranks when one has no memory left.
  at::Tensor shared_empty(at::IntArrayRef shape, at::ScalarType dtype, Site site = Site::current());

  // Concatenates the ranks' tensors of one shape [k, ...] along dim 0, in rank order: [size * k,
  // ...] (a 0-dim tensor counts as [1]). gather returns it on the root and an undefined tensor
  // elsewhere.
  // Collective: all ranks call it.
  at::Tensor gather(const at::Tensor& tensor, int root, Site site = Site::current());
  at::Tensor all_gather(const at::Tensor& tensor, Site site = Site::current());
  // `output` has the shape that the forms above return; it is ignored for gather except on the
  // root. iall_gather and iall_gatherv also take this rank's own part of `output` as `tensor`, for
  // a gather in place.
  Work igather(const at::Tensor& output, const at::Tensor& tensor, int root,
               Site site = Site::current());
  Work iall_gather(const at::Tensor& output, const at::Tensor& tensor, Site site = Site::current());

  // The same with parts that differ in dim 0. counts[r] is rank r's size along dim 0, the same
  // vector on all ranks. Without `counts` the blocking forms exchange them first (one small
  // all_gather).
  // Collective: all ranks call it.
  at::Tensor gatherv(const at::Tensor& tensor, int root, Site site = Site::current());
  at::Tensor all_gatherv(const at::Tensor& tensor, Site site = Site::current());
  Work igatherv(const at::Tensor& output, const at::Tensor& tensor, std::span<const int64_t> counts,
                int root, Site site = Site::current());
  Work iall_gatherv(const at::Tensor& output, const at::Tensor& tensor,
                    std::span<const int64_t> counts, Site site = Site::current());

  // Splits the root's `input` [size * k, ...] along dim 0 and puts part r into rank r's `output`
  // [k, ...]. `input` is ignored except on the root (pass {} there).
  // Collective: all ranks call it.
  void scatter(const at::Tensor& output, const at::Tensor& input, int root,
               Site site = Site::current());
  Work iscatter(const at::Tensor& output, const at::Tensor& input, int root,
                Site site = Site::current());
  // The same with parts of counts[r] rows, the same vector on all ranks; output has counts[rank]
  // rows.
  // Collective: all ranks call it.
  void scatterv(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> counts,
                int root, Site site = Site::current());
  Work iscatterv(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> counts,
                 int root, Site site = Site::current());

  // Reduces all ranks' `input` [size * k, ...] and gives rank r part r, [k, ...].
  // Collective: all ranks call it.
  at::Tensor reduce_scatter(const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                            Site site = Site::current());
  Work ireduce_scatter(const at::Tensor& output, const at::Tensor& input,
                       ReduceOp op = ReduceOp::kSum, Site site = Site::current());
  // The same with parts of counts[r] rows, the same vector on all ranks.
  // Collective: all ranks call it.
  at::Tensor reduce_scatterv(const at::Tensor& input, std::span<const int64_t> counts,
                             ReduceOp op = ReduceOp::kSum, Site site = Site::current());
  Work ireduce_scatterv(const at::Tensor& output, const at::Tensor& input,
                        std::span<const int64_t> counts, ReduceOp op = ReduceOp::kSum,
                        Site site = Site::current());

  // Sends part r of `input` [size * k, ...] to rank r. Returns the parts received, in rank order,
  // [size * k, ...].
  // Collective: all ranks call it.
  at::Tensor all_to_all(const at::Tensor& input, Site site = Site::current());
  Work iall_to_all(const at::Tensor& output, const at::Tensor& input, Site site = Site::current());
  // Sends send_counts[r] rows to rank r and receives recv_counts[r] rows from it. Without
  // recv_counts the ranks exchange them first.
  at::Tensor all_to_allv(const at::Tensor& input, std::span<const int64_t> send_counts,
                         Site site = Site::current());
  Work iall_to_allv(const at::Tensor& output, const at::Tensor& input,
                    std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                    Site site = Site::current());

  // Point to point. A message is matched by peer and tag (>= 0), in order among equal ones; dtype
  // and number of elements must agree (Mismatch). send returns when the tensor may be reused, which
  // may be before it is received; a send that finds no receiver and no room waits. A rank may send
  // to itself if the receive is posted (irecv) or the tensor is small. Not collective.
  void send(const at::Tensor& tensor, int dst, int tag = 0, Site site = Site::current());
  void recv(const at::Tensor& tensor, int src, int tag = 0, Site site = Site::current());
  Work isend(const at::Tensor& tensor, int dst, int tag = 0, Site site = Site::current());
  Work irecv(const at::Tensor& tensor, int src, int tag = 0, Site site = Site::current());
  // Returns what a receive of `tag` from `src` would find now, behind the receives already posted.
  // It serves receivers that take messages from the first rank that sends. It sees the host's
  // messages only. Never blocks.
  // Throws: PeerLost if there is no message and the rank is dead; InvalidArgument where the
  // capabilities lack `probe`.
  Probe probe(int src, int tag = 0);

  // Makes progress on everything pending in all communicators of the same init(), for hooks inside
  // a long computation. Never blocks.
  void progress();

  // Breaks the communicator on all ranks, as far as the engine reaches: their waits throw PeerLost
  // with `reason`. Another thread may be inside a call of this communicator; if that call waits, it
  // throws PeerLost too, within some tenths of a second, and leaves its tensors as after any other
  // failure. On backends gloo, mpi and nccl, a wait for a message ends at its deadline instead.
  // abort() waits at most a second for that call to end. It also aborts duplicates that libraries
  // have made of this communicator.
  // Thread-safety: any thread, at any time.
  void abort(const std::string& reason) noexcept;

  // Further groups of the same ranks. Each is a communicator of its own, with its own engine,
  // memory, sequence numbers and errors: a group that breaks leaves the others as they were, and
  // all may be used at once. Ranks may wait on several groups in any order, since a wait on one
  // progresses the pending operations of the others; an operation that has not been called yet does
  // not progress. Ranks that wait for each other's calls in different groups, which no wait can
  // end, get Mismatch on those groups some seconds later (half a minute where it is a group's first
  // call), with the place of each rank. Such a wait is not detected where a rank uses communicators
  // from several threads, of which another may still call. Nothing progresses while groups are
  // being made. A group's memory is taken as it is used; before that, it costs some tens of KiB a
  // rank (tests measure it). Ranks count from 0 in each group; local and node ranks are those among
  // its members. Backend and time-out are this communicator's.
  // Collective: all ranks of this communicator call it, non-members included. All return once every
  // group is made, or all throw, and this communicator stays usable.
  // Throws: InvalidArgument also where this communicator cannot make groups, and on all ranks when
  // they asked for different things.
  //
  // split: makes one group for each color, with its ranks in order of `key`, and equal keys in
  // order of rank. A rank with a negative color is in no group and gets nullopt.
  std::optional<Communicator> split(int color, int key = 0, Site site = Site::current());
  // subgroup: makes one group of the listed ranks, in that order. The list is the same on all
  // ranks. A rank that is not listed gets nullopt.
  std::optional<Communicator> subgroup(const std::vector<int>& ranks, Site site = Site::current());
  // Sets the titles by which errors name the ranks of this handle's group and of groups made from
  // it later, beside their numbers in the job: "data 1, tensor 0". Each rank sets them for itself;
  // nothing is sent. It has no effect where the communicator cannot make groups.
  // Throws: InvalidArgument if there are not as many titles as ranks.
  void name_ranks(std::vector<std::string> titles);
  // duplicate: makes a second group of all ranks, for a library whose calls must not interleave
  // with its caller's.
  Communicator duplicate(Site site = Site::current());
  // Throws the error that broke this communicator or, directly or indirectly, a duplicate of it.
  // Sends nothing. When a device fails after its operation's wait has returned, the other ranks
  // learn of it on the communicator that it was called on.
  void throw_if_broken() const;

  // A new communicator of the surviving ranks, in the same order and renumbered, after PeerLost,
  // Timeout or Mismatch broke this one; it may also be called when nothing broke. Every survivor
  // calls it, whatever error it saw. This communicator and the groups made of it are broken
  // afterwards: shrink aborts them first, so that ranks that still wait learn of the failure.
  // Either all ranks of the new group return it, or all of them throw.
  //
  // The protocol uses the job's store. Each survivor announces itself. It proposes the announced
  // ranks as members once every other rank is announced or known to be dead, or at half of the
  // deadline. The first proposal in the store wins for all ranks. The members then make the group
  // and write the outcome to the store: "made" by a rank that saw all of them succeed, or a reason
  // by one that saw a failure or the deadline. The first outcome written applies to all members. A
  // rank that arrives after the proposal is not a member and gets PeerLost. A further call closes
  // the earlier attempts before it begins, so that no two of them can both make a group. A deadline
  // of seconds is appropriate: a stopped or stuck rank delays the others for half of it; a dead one
  // does not where the engine knows which ranks are dead.
  //
  // Throws: PeerLost (this rank is not a member, or a member died meanwhile: call shrink again),
  // StoreError (the store died with the rank that served it: init_method tcp:// and rank 0),
  // Timeout (the store does not answer), InvalidArgument (this communicator cannot make groups).
  Communicator shrink(Deadline deadline);

  // A new communicator of all ranks of the job, with their former ranks and size, after an error
  // broke this one and the launcher replaced the dead ranks (lockstep run --on-failure replace).
  // Every survivor calls it on the communicator that init() or an earlier reform() returned,
  // whatever error it saw. This communicator is broken afterwards: reform aborts it first, with all
  // groups made of it, so that ranks that still wait learn of it. A new process calls init() and meets
  // the survivors. Either all ranks return the new generation or, when one dies on the way, all
  // wait for its successor. Nothing else of the job is restored: the program makes its groups,
  // symmetric memory and training state anew (recover/recovery.h).
  //
  // Throws: Timeout that names the missing ranks (call it again, or end the process), Mismatch that
  // names a rank of this host that has ended and so will not come, StoreError (the
  // job's store does not answer), InvalidArgument (the job replaces no ranks, or this is a group of
  // some of the job's ranks).
  Communicator reform(Deadline deadline);
  // The number of the ranks' meeting in this job. It rises with every reform(); 0 where ranks are
  // not replaced.
  int64_t generation() const;

  class Impl;

 private:
  std::optional<Communicator> make_group(int kind, uint64_t signature, int color, int key,
                                         Site site);

  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep::inline v0
