#include "lockstep/testing/fake_cuda/internal/machine.h"

#include <torch/csrc/autograd/function.h>

#include <cstdint>

#include "lockstep/testing/fake_cuda/internal/capture.h"
#include "lockstep/testing/fake_cuda/internal/pinned.h"

namespace lockstep::inline v0::testing::fake {
namespace {

constexpr size_t kMostRaces = 100;

}  // namespace

void RaceLog::add(RaceKind kind, PlacePtr earlier, PlacePtr later, PlacePtr made) {
  std::string key = std::to_string(static_cast<int>(kind));
  for (const PlacePtr& place : {earlier, later}) {
    if (!place) continue;
    key += '|' + place->operation + '|' + place->where + '|';
    for (void* caller : place->callers)
      key += std::to_string(reinterpret_cast<uintptr_t>(caller)) + ',';
  }
  const MutexLock lock(mutex_);
  if (found_.size() < kMostRaces && known_.insert(std::move(key)).second)
    found_.push_back({kind, std::move(earlier), std::move(later), std::move(made)});
}

std::vector<Race> RaceLog::take() {
  std::vector<Found> found;
  {
    const MutexLock lock(mutex_);
    found.swap(found_);
    known_.clear();
  }
  std::vector<PlacePtr> places;
  for (const Found& one : found) places.insert(places.end(), {one.earlier, one.later, one.made});
  prepare_to_describe(places);
  std::vector<Race> races;
  const auto text = [](const PlacePtr& place) { return place ? describe(*place) : std::string(); };
  for (const Found& one : found)
    races.push_back({one.kind, text(one.earlier), text(one.later), text(one.made)});
  return races;
}

PlacePtr place_of(std::string operation, StreamSlot stream) {
  const Machine& m = machine();
  const auto node = torch::autograd::get_current_node();
  return make_place(std::move(operation), m.timeline.name(stream), node ? node->name() : "",
                    m.options.callers);
}

void Machine::use(int device, int64_t operations) {
  if (device != options.failing_device) return;
  if ((on_failing_device += operations) < options.fails_at) return;
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 700,
                              "CUDA error: an illegal memory access was encountered\nFakeCuda's "
                              "cuda:" +
                                  std::to_string(device) + " fails (FakeCudaOptions)");
}

void stop_host(HostStop cause, std::string operation, StreamSlot stream, const VectorClock& clock) {
  Machine& m = machine();
  m.use(m.timeline.device(stream), 0);
  const CapturePtr capture =
      cause == HostStop::kDevice ? captures().on(m.timeline.device(stream)) : captures().of(stream);
  if (capture)
    capture->forbid("the host waits (" + std::string(name(cause)) + ") in " +
                        describe(*place_of(std::move(operation), stream)),
                    "operation not permitted when stream is capturing "
                    "(cudaErrorStreamCaptureUnsupported)");
  m.timeline.wait_for(clock);
  m.timeline.waited(clock);
  pinned_memory().settle(clock);
  FakeCudaCounts counts;
  counts.stops_by_cause[static_cast<size_t>(cause)] = 1;
  count(counts);
  const auto host = Host::current();
  if (host->watched()) host->note({cause, place_of(std::move(operation), stream)});
}

void count(const FakeCudaCounts& counted) {
  FakeCudaCounts counts = counted;
  // What is recorded does not run, and what a replay does is counted by that.
  const bool captured = current_capture() != nullptr;
  if (captured) counts.captured = counts.operations;
  if (captured || replaying()) counts.operations = counts.fallbacks = counts.copies = 0;
  machine().tally.add(counts);
  Host::current()->tally.add(counts);
}

}  // namespace lockstep::inline v0::testing::fake
