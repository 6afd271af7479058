#include "lockstep/testing/fake_cuda/internal/nccl.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/internal/capture.h"
#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/launch.h"
#include "lockstep/testing/fake_cuda/internal/nccl_arithmetic.h"

namespace lockstep::inline v0::testing::fake {
namespace {

using Clock = std::chrono::steady_clock;

enum NcclResult : int {
  kDone = 0,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kInProgress = 7,
};

constexpr auto kLateness = std::chrono::milliseconds(2);  // an operation, after it could have begun
constexpr auto kLook = std::chrono::microseconds(500);
constexpr auto kJoin = std::chrono::minutes(2);

constexpr std::array<const char*, 7> kNames{"ncclBroadcast", "ncclReduce",        "ncclAllReduce",
                                            "ncclAllGather", "ncclReduceScatter", "ncclSend",
                                            "ncclRecv"};

struct NcclComm;

// One function's call.
struct Part {
  int op = 0;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t count = 0;
  int dtype = 0;
  int reduce = 0;
  int peer = 0;
  uint64_t number = 0;  // among the collectives, or among the messages between the two
  bool over = false;

  size_t bytes() const { return count * nccl_item_size(dtype); }
  bool is_message() const { return op == kNcclSend || op == kNcclRecv; }
};

// What is one piece of work on a stream: a call, or a group of them.
struct Batch {
  std::vector<Part> parts;
  Moment moment;
  bool begun = false;
  Clock::time_point due;  // once it has begun
};

struct Clique {
  explicit Clique(int size) : members(static_cast<size_t>(size)) {}
  std::vector<NcclComm*> members;
  int joined = 0;
  bool refused = false;
};

struct NcclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int device = 0;
  uint64_t collectives = 0;
  std::map<int, uint64_t> sent, received;  // by peer
  std::set<int> called;                    // peers of messages
  std::list<Batch> pending;
  VectorClock posted;  // all of its operations
  int captured = 0;    // calls that graphs, or captures, have
};

// Calls between ncclGroupStart and ncclGroupEnd.
struct Collected {
  NcclComm* comm;
  void* stream;
  Part part;
};
thread_local int group_depth = 0;
thread_local std::vector<Collected> group_calls;

class Nccl {
 public:
  int init(void** comm, int size, const NcclId& id, int rank, bool blocking);
  int async_error(NcclComm* comm, int* result);
  // Held by the graph that has a call of the communicator.
  std::shared_ptr<void> hold(NcclComm* comm);
  int abort(NcclComm* comm);
  int post(std::vector<Collected> calls);
  bool post_if_there(const std::vector<Collected>& calls);
  int unique_id(NcclId* id);

 private:
  int state(const NcclComm& comm) const LOCKSTEP_REQUIRES(mutex_);
  void run();
  bool pass() LOCKSTEP_REQUIRES(mutex_);
  void begin(Batch& batch) LOCKSTEP_REQUIRES(mutex_);
  static Part* find(NcclComm* comm, int op, int peer, uint64_t number);
  static void try_collective(const NcclComm& comm, const Part& part);
  static void try_message(const NcclComm& comm, Part& part);

  Mutex mutex_;
  ConditionVariable changed_;
  bool started_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  uint64_t ids_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::weak_ptr<Clique>> cliques_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<NcclComm*> comms_ LOCKSTEP_GUARDED_BY(mutex_);
};

Nccl& nccl() {
  static auto* const the = new Nccl;  // its thread outlives main()
  return *the;
}

int Nccl::unique_id(NcclId* id) {
  const MutexLock lock(mutex_);
  std::memset(id->bytes, 0, sizeof id->bytes);
  const std::string text = "FakeCuda " + std::to_string(++ids_);
  text.copy(id->bytes, sizeof id->bytes - 1);
  return kDone;
}

int Nccl::init(void** comm, int size, const NcclId& id, int rank, bool blocking) {
  if (size < 1 || rank < 0 || rank >= size) return kInvalidArgument;
  MutexLock lock(mutex_);
  std::weak_ptr<Clique>& known = cliques_[std::string(id.bytes, sizeof id.bytes)];
  std::shared_ptr<Clique> clique = known.lock();
  if (!clique) known = clique = std::make_shared<Clique>(size);
  NcclComm*& member = clique->members[static_cast<size_t>(rank)];
  if (member != nullptr) return kInvalidUsage;
  member = new NcclComm{clique, rank, current_device(), 0, {}, {}, {}, {}, {}, 0};
  comms_.insert(member);
  for (const NcclComm* other : clique->members)
    if (other != nullptr && other != member && other->device == member->device)
      clique->refused = true;
  ++clique->joined;
  *comm = member;
  if (!started_) std::thread([this] { run(); }).detach();
  started_ = true;
  changed_.notify_all();
  const Deadline deadline = Deadline::after(kJoin);
  while (blocking && state(*member) == kInProgress && !deadline.expired())
    changed_.wait_until(lock, deadline.time());
  return state(*member);
}

int Nccl::state(const NcclComm& comm) const {
  const Clique& clique = *comm.clique;
  if (clique.refused) return kInvalidUsage;
  if (clique.joined < static_cast<int>(clique.members.size())) return kInProgress;
  for (const int peer : comm.called) {
    const NcclComm* other = clique.members[static_cast<size_t>(peer)];
    if (other != nullptr && !other->called.contains(comm.rank)) return kInProgress;
  }
  return kDone;
}

int Nccl::async_error(NcclComm* comm, int* result) {
  const MutexLock lock(mutex_);
  *result = state(*comm);
  return kDone;
}

int Nccl::abort(NcclComm* comm) {
  MutexLock lock(mutex_);
  // It ends what runs, and returns when that has ended and no graph has its calls any more.
  for (const Batch& batch : comm->pending) machine().timeline.end_late(batch.moment.stamp);
  machine().timeline.waited(comm->posted);
  comm->clique->members[static_cast<size_t>(comm->rank)] = nullptr;
  comms_.erase(comm);
  comm->pending.clear();
  changed_.notify_all();
  while (comm->captured > 0) changed_.wait(lock);
  delete comm;
  return kDone;
}

std::shared_ptr<void> Nccl::hold(NcclComm* comm) {
  const MutexLock lock(mutex_);
  ++comm->captured;
  return {comm, [this](void* held) {
            const MutexLock gone(mutex_);
            --static_cast<NcclComm*>(held)->captured;
            changed_.notify_all();
          }};
}

int Nccl::post(std::vector<Collected> calls) {
  int result = kDone;
  while (!calls.empty()) {
    // One piece of work for each communicator and stream.
    NcclComm* comm = calls.front().comm;
    void* stream = calls.front().stream;
    Batch batch;
    std::vector<Collected> own, rest;
    for (Collected& call : calls) {
      if (call.comm == comm && call.stream == stream) {
        batch.parts.push_back(call.part);
        own.push_back(std::move(call));
      } else {
        rest.push_back(std::move(call));
      }
    }
    calls = std::move(rest);
    std::string name = kNames[static_cast<size_t>(batch.parts.front().op)];
    if (batch.parts.size() > 1) name += " and others of a group";
    Launch launch(std::move(name),
                  machine().timeline.slot(comm->device, reinterpret_cast<int64_t>(stream)));
    const auto ranks = comm->clique->members.size();
    for (const Part& part : batch.parts) {
      const bool root = part.peer == comm->rank;
      const bool reads = part.op != kNcclRecv && (part.op != kNcclBroadcast || root);
      // The root of a broadcast has what it sends.
      const bool writes = part.op != kNcclSend && (part.op != kNcclReduce || root) &&
                          !(part.op == kNcclBroadcast && root && part.to == part.from);
      if (reads)
        launch.reads(part.from, part.bytes() * (part.op == kNcclReduceScatter ? ranks : 1));
      if (writes) launch.writes(part.to, part.bytes() * (part.op == kNcclAllGather ? ranks : 1));
    }
    FakeCudaCounts counts;
    counts.operations = 1;
    count(counts);
    if (launch.capture()) {
      // As a graph has it: the ranks meet in their replays.
      launch.start_captured();
      launch.capture()->add_late(
          [this, own, slot = launch.stream(), held = hold(comm)](StreamSlot replay) {
            Timeline& timeline = machine().timeline;
            timeline.order(slot, timeline.own(replay));
            TORCH_CHECK(post_if_there(own), "FakeCuda: a communicator of the graph is gone");
          },
          [slot = launch.stream()](StreamSlot replay) {
            Timeline& timeline = machine().timeline;
            const VectorClock over = timeline.own(slot);
            timeline.wait_for(over);
            timeline.order(replay, over);
          },
          launch.moment());
      continue;
    }
    launch.start(/*late=*/true);
    batch.moment = launch.moment();

    const MutexLock lock(mutex_);
    for (Part& part : batch.parts) {
      if (!part.is_message()) {
        part.number = ++comm->collectives;
        continue;
      }
      part.number = part.op == kNcclSend ? ++comm->sent[part.peer] : ++comm->received[part.peer];
      comm->called.insert(part.peer);
    }
    comm->posted.advance(batch.moment.stamp);
    comm->pending.push_back(std::move(batch));
    if (const int now = state(*comm); now != kDone) result = now;
    changed_.notify_all();
  }
  return result;
}

bool Nccl::post_if_there(const std::vector<Collected>& calls) {
  {
    const MutexLock lock(mutex_);
    if (!comms_.contains(calls.front().comm)) return false;
  }
  post(calls);
  return true;
}

void Nccl::run() {
  MutexLock lock(mutex_);
  while (true) {
    if (pass())
      changed_.wait_until(lock, Clock::now() + kLook);
    else
      changed_.wait(lock);
  }
}

void Nccl::begin(Batch& batch) {
  if (batch.begun || !machine().timeline.finished(batch.moment.clock, &batch.moment.stamp)) return;
  batch.begun = true;
  batch.due = Clock::now() + kLateness;
}

// Whether anything is under way still.
bool Nccl::pass() {
  bool busy = false;
  for (NcclComm* comm : comms_)
    for (Batch& batch : comm->pending) begin(batch);
  for (NcclComm* comm : comms_) {
    for (Batch& batch : comm->pending) {
      for (Part& part : batch.parts) {
        if (!batch.begun || batch.due > Clock::now() || part.over) continue;
        if (part.is_message())
          try_message(*comm, part);
        else
          try_collective(*comm, part);
      }
    }
  }
  for (NcclComm* comm : comms_) {
    std::erase_if(comm->pending, [](const Batch& batch) {
      const bool over = std::all_of(batch.parts.begin(), batch.parts.end(),
                                    [](const Part& part) { return part.over; });
      if (over) machine().timeline.end_late(batch.moment.stamp);
      return over;
    });
    busy = busy || !comm->pending.empty();
  }
  return busy;
}

// The part of a rank's that has begun, or nullptr. For messages `peer` counts, for collectives not.
Part* Nccl::find(NcclComm* comm, int op, int peer, uint64_t number) {
  if (comm == nullptr) return nullptr;
  for (Batch& batch : comm->pending) {
    if (!batch.begun || batch.due > Clock::now()) continue;
    for (Part& part : batch.parts) {
      if (part.op == op && part.number == number && (!part.is_message() || part.peer == peer))
        return &part;
    }
  }
  return nullptr;
}

// Memory of devices that stays open as long as this lives. What is not there any more is left out.
class OpenMemory {
 public:
  ~OpenMemory() {
    for (const void* address : opened_) machine().memory.close_at(address);
  }
  bool add(const void* address) {
    if (!machine().memory.open_at(address)) return false;
    opened_.push_back(address);
    return true;
  }

 private:
  std::vector<const void*> opened_;
};

void Nccl::try_message(const NcclComm& comm, Part& part) {
  if (part.op != kNcclSend) return;  // its sender does it
  Part* other =
      find(comm.clique->members[static_cast<size_t>(part.peer)], kNcclRecv, comm.rank, part.number);
  if (other == nullptr) return;
  OpenMemory memory;
  const size_t bytes = std::min(part.bytes(), other->bytes());
  if (bytes > 0 && memory.add(part.from) && memory.add(other->to))
    std::memmove(other->to, part.from, bytes);
  part.over = other->over = true;
}

void Nccl::try_collective(const NcclComm& comm, const Part& part) {
  std::vector<Part*> parts;
  for (NcclComm* member : comm.clique->members) {
    parts.push_back(find(member, part.op, -1, part.number));
    if (parts.back() == nullptr) return;
  }
  OpenMemory memory;
  bool all_there = true;
  for (Part* one : parts) {
    const bool any = one->count > 0;
    all_there = all_there && (one->from == nullptr || !any || memory.add(one->from));
    // Freed by a rank that has no use for it, behind this in its stream's order; the others have.
    if (one->to != nullptr && any && !memory.add(one->to)) one->to = nullptr;
    one->over = true;
  }
  if (!all_there) return;
  const size_t bytes = part.bytes();
  const size_t ranks = parts.size();
  std::vector<const std::byte*> inputs;
  for (const Part* one : parts) inputs.push_back(one->from);
  // Results that may lie where inputs do are made aside.
  std::vector<std::byte> result(
      bytes * (part.op == kNcclAllGather || part.op == kNcclReduceScatter ? ranks : 1));
  const auto root = static_cast<size_t>(part.peer);
  if (bytes == 0) return;
  switch (part.op) {
    case kNcclBroadcast:
      std::memcpy(result.data(), inputs[root], bytes);
      break;
    case kNcclAllGather:
      for (size_t r = 0; r < ranks; ++r) std::memcpy(result.data() + r * bytes, inputs[r], bytes);
      break;
    default:
      nccl_reduce(part.dtype, part.reduce, inputs, result.data(),
                  part.count * (part.op == kNcclReduceScatter ? ranks : 1));
  }
  for (size_t r = 0; r < ranks; ++r) {
    if ((part.op == kNcclReduce && r != root) || parts[r]->to == nullptr) continue;
    if (part.op == kNcclReduceScatter)
      std::memcpy(parts[r]->to, result.data() + r * bytes, bytes);
    else if (part.op != kNcclBroadcast || parts[r]->to != parts[r]->from || r != root)
      std::memcpy(parts[r]->to, result.data(), result.size());
  }
}

int call_nccl(int op, const void* from, void* to, size_t count, int dtype, int reduce, int peer,
              void* comm, void* stream) {
  auto* of = static_cast<NcclComm*>(comm);
  if (of == nullptr || nccl_item_size(dtype) == 0 || peer < 0 ||
      peer >= static_cast<int>(of->clique->members.size()))
    return kInvalidArgument;
  Part part{op,
            static_cast<const std::byte*>(from),
            static_cast<std::byte*>(to),
            count,
            dtype,
            reduce,
            peer,
            0,
            false};
  group_calls.push_back({of, stream, part});
  return group_depth > 0 ? kDone : nccl().post(std::exchange(group_calls, {}));
}

const NcclTable kTable{
    .get_unique_id = [](NcclId* id) { return nccl().unique_id(id); },
    .comm_init = [](void** comm, int size, const NcclId& id, int rank,
                    bool blocking) { return nccl().init(comm, size, id, rank, blocking); },
    .async_error =
        [](void* comm, int* result) {
          return nccl().async_error(static_cast<NcclComm*>(comm), result);
        },
    .abort = [](void* comm) { return nccl().abort(static_cast<NcclComm*>(comm)); },
    .group_start =
        [] {
          ++group_depth;
          return int{kDone};
        },
    .group_end =
        [] {
          if (group_depth == 0) return int{kInvalidUsage};
          if (--group_depth > 0) return int{kDone};
          return nccl().post(std::exchange(group_calls, {}));
        },
    .call = &call_nccl,
};

}  // namespace

const NcclTable& nccl_table() {
  return kTable;
}

}  // namespace lockstep::inline v0::testing::fake
