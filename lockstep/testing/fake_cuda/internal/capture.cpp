#include "lockstep/testing/fake_cuda/internal/capture.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/launch.h"

namespace lockstep::inline v0::testing::fake {
namespace {

std::atomic<uint64_t> next_id{1};
// Streams that are captured now: most programs capture none.
std::atomic<int> captured_streams{0};
thread_local bool in_replay = false;

constexpr const char* kUnsupported =
    "operation not permitted when stream is capturing (cudaErrorStreamCaptureUnsupported)";

class OpenBlocks {
 public:
  ~OpenBlocks() {
    for (Block* block : opened_) machine().memory.close(*block);
  }
  void add(Block* block) {
    machine().memory.open(*block);
    opened_.push_back(block);
  }

 private:
  std::vector<Block*> opened_;
};

// The block that was used, if it is still there.
Block* found(const std::byte* data, const PlacePtr& made) {
  Block* block = machine().memory.find(data);
  return block != nullptr && block->data == data && block->made == made ? block : nullptr;
}

class InReplay {
 public:
  InReplay() { in_replay = true; }
  ~InReplay() { in_replay = false; }
  InReplay(const InReplay&) = delete;
  InReplay& operator=(const InReplay&) = delete;
};

}  // namespace

Capture::Capture(StreamSlot origin, CaptureMode mode)
    : origin_(origin), mode_(mode), id_(next_id++) {
  generator_ = default_generator(machine().timeline.device(origin));
  generator_state_ = generator_.get_state();
}

Capture::~Capture() {
  const MutexLock lock(mutex_);
  for (const auto& [data, held] : pool_) {
    Block* block = held ? nullptr : machine().memory.find(data);
    if (block != nullptr)
      machine().memory.free(block, machine().timeline.now(block->home, *Host::current()));
  }
}

void Capture::use(const std::vector<CapturedUse>& uses, bool runs) {
  throw_if_invalid();
  const MutexLock lock(mutex_);
  for (const CapturedUse& use : uses) {
    uses_.push_back(use);
    const auto known = [&](const Saved& saved) { return saved.block == use.block; };
    if (!runs || !use.write || owns(use.block) || std::any_of(saved_.begin(), saved_.end(), known))
      continue;
    Block* block = found(use.block, use.made);
    if (block == nullptr) continue;
    OpenBlocks open;
    open.add(block);
    saved_.push_back({use.block, use.made, {block->data, block->data + block->bytes}});
  }
}

void Capture::add(CapturedWork work) {
  const MutexLock lock(mutex_);
  work_.push_back({std::move(work), nullptr, {}});
}

void Capture::add_late(CapturedWork begin, CapturedWork end, Moment moment) {
  const MutexLock lock(mutex_);
  work_.push_back({std::move(begin), std::move(end), std::move(moment)});
}

bool Capture::owns(const void* data) const {
  return std::any_of(pool_.begin(), pool_.end(),
                     [data](const auto& one) { return one.first == data; });
}

void Capture::own(Block& block) {
  const MutexLock lock(mutex_);
  pool_.emplace_back(block.data, true);
}

void Capture::drop(const void* data) {
  const MutexLock lock(mutex_);
  for (auto& [own, held] : pool_) held = held && own != data;
}

void Capture::forbid(const std::string& what, const char* error) {
  {
    const MutexLock lock(mutex_);
    if (wrong_.empty()) wrong_ = what;
  }
  TORCH_CHECK(false, "CUDA error: ", error, ": ", what);
}

void Capture::throw_if_invalid() const {
  const MutexLock lock(mutex_);
  TORCH_CHECK(wrong_.empty(),
              "CUDA error: operation failed due to a previous error during capture "
              "(cudaErrorStreamCaptureInvalidated): ",
              wrong_);
}

bool Capture::valid() const {
  const MutexLock lock(mutex_);
  return wrong_.empty();
}

void Capture::end() {
  const MutexLock lock(mutex_);
  for (const Saved& saved : saved_) {
    Block* block = found(saved.block, saved.made);
    if (block == nullptr) continue;
    OpenBlocks open;
    open.add(block);
    std::memcpy(block->data, saved.contents.data(), saved.contents.size());
  }
  saved_.clear();
  for (const auto& [data, held] : pool_) {
    Block* block = machine().memory.find(data);
    OpenBlocks open;
    open.add(block);
    std::memset(block->data, 0xff, block->bytes);
  }
  generator_.set_state(generator_state_);
}

void Capture::replay(StreamSlot stream) {
  Launch launch("cudaGraphLaunch", stream);
  OpenBlocks open;
  const std::vector<Work>* work = nullptr;  // no thread adds to it any more
  MutexLock lock(mutex_);
  for (const CapturedUse& use : uses_) {
    Block* block = found(use.block, use.made);
    if (block == nullptr) {
      const PlacePtr place = place_of("cudaGraphLaunch", stream);
      machine().races.add(RaceKind::kFreedInUse, place, place, use.made);
      TORCH_CHECK(false,
                  "CUDA error: an illegal memory access was encountered: the graph uses "
                  "memory that was made before its capture and is freed: ",
                  describe(*use.made));
    }
    launch.uses(*block, use.bytes, use.write);
  }
  for (const auto& [data, held] : pool_) open.add(machine().memory.find(data));
  work = &work_;
  lock.unlock();
  FakeCudaCounts counts;
  counts.operations = counts.replays = 1;
  counts.replayed = static_cast<int64_t>(work->size());
  count(counts);
  launch.start();
  const InReplay now;
  std::vector<const Work*> late;
  const auto end_late = [&] {
    for (const Work* one : late) one->end(stream);
    late.clear();
  };
  for (const Work& one : *work) {
    const auto follows = [&](const Work* before) {
      return one.moment.clock.covers(before->moment.stamp);
    };
    if (!one.end || std::any_of(late.begin(), late.end(), follows)) end_late();
    one.begin(stream);
    if (one.end) late.push_back(&one);
  }
  end_late();
}

CapturePtr Captures::begin(StreamSlot origin, int64_t id, CaptureMode mode) {
  TORCH_CHECK(id != 0,
              "CUDA graphs must be captured on a non-default stream. (However, after capture, it's "
              "ok to replay them on the default stream.)");
  TORCH_CHECK(of(origin) == nullptr, "CUDA error: ", kUnsupported);
  auto capture = std::make_shared<Capture>(origin, mode);
  const MutexLock lock(mutex_);
  members_.push_back({origin, capture});
  ++captured_streams;
  return capture;
}

void Captures::end(const CapturePtr& capture) {
  Timeline& timeline = machine().timeline;
  const VectorClock joined = timeline.now(capture->origin(), *Host::current());
  VectorClock all = joined;
  std::string unjoined;
  {
    const MutexLock lock(mutex_);
    std::erase_if(members_, [&](const Member& member) {
      if (member.capture != capture) return false;
      const VectorClock clock = timeline.own(member.stream);
      if (!joined.covers({member.stream, clock.of(member.stream)}))
        unjoined = timeline.name(member.stream);
      all.join(clock);
      --captured_streams;
      return true;
    });
  }
  // None of it has run, so that nothing is to wait for it.
  timeline.waited(all);
  capture->end();
  capture->throw_if_invalid();
  if (!unjoined.empty())
    capture->forbid("the capture's stream does not wait for what " + unjoined + " was given",
                    "capturing stream has unjoined work (cudaErrorStreamCaptureUnjoined)");
}

CapturePtr Captures::of(StreamSlot stream) const {
  if (captured_streams.load(std::memory_order_relaxed) == 0) return nullptr;
  const MutexLock lock(mutex_);
  for (const Member& member : members_)
    if (member.stream == stream) return member.capture;
  return nullptr;
}

bool Captures::under_way(const CapturePtr& capture) const {
  const MutexLock lock(mutex_);
  return std::any_of(members_.begin(), members_.end(),
                     [&](const Member& member) { return member.capture == capture; });
}

CapturePtr Captures::on(int device) const {
  if (captured_streams.load(std::memory_order_relaxed) == 0) return nullptr;
  const MutexLock lock(mutex_);
  for (const Member& member : members_)
    if (machine().timeline.device(member.stream) == device) return member.capture;
  return nullptr;
}

void Captures::wait(StreamSlot stream, const CapturePtr& of) {
  const CapturePtr own = this->of(stream);
  if (own == of) return;
  if (own != nullptr)
    own->forbid("a stream that is captured waits for an event that was recorded outside",
                "dependency created on uncaptured work in another stream "
                "(cudaErrorStreamCaptureIsolation)");
  if (machine().timeline.is_default(stream))
    of->forbid(
        "the default stream waits for an event of a stream that is captured; what is made "
        "on the default stream, as the nodes that a DistributedDataParallel holds, stays "
        "there",
        "operation would make the legacy stream depend on a capturing blocking stream "
        "(cudaErrorStreamCaptureImplicit)");
  const MutexLock lock(mutex_);
  members_.push_back({stream, of});
  ++captured_streams;
}

void Captures::check_unsafe(const char* call) const {
  if (captured_streams.load(std::memory_order_relaxed) == 0) return;
  std::vector<CapturePtr> all;
  {
    const MutexLock lock(mutex_);
    for (const Member& member : members_) all.push_back(member.capture);
  }
  for (const CapturePtr& capture : all) {
    const bool own = capture->thread() == std::this_thread::get_id();
    if (capture->mode() == CaptureMode::kGlobal ||
        (own && capture->mode() != CaptureMode::kRelaxed))
      capture->forbid(std::string(call) + " while a stream is captured", kUnsupported);
  }
}

Captures& captures() {
  static auto* const all = new Captures;
  return *all;
}

CapturePtr current_capture() {
  if (captured_streams.load(std::memory_order_relaxed) == 0) return nullptr;
  return captures().of(current_slot(current_device()));
}

bool replaying() {
  return in_replay;
}

}  // namespace lockstep::inline v0::testing::fake
