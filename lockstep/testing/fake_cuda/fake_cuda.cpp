#include "lockstep/testing/fake_cuda/fake_cuda.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <numeric>
#include <sstream>

#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/internal/capture.h"
#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"

namespace lockstep::inline v0::testing {
namespace fake {
namespace {

Machine* the_machine = nullptr;

}  // namespace

Machine& machine() {
  return *the_machine;
}
Machine* installed_machine() {
  return the_machine;
}

}  // namespace fake

namespace {

constexpr int kMostDevices = 64;

void check_options(const FakeCudaOptions& options) {
  if (options.devices < 1 || options.devices > kMostDevices)
    throw InvalidArgument("FakeCuda: devices must be from 1 to " + std::to_string(kMostDevices) +
                          ", not " + std::to_string(options.devices));
  if (options.memory_bytes < 1)
    throw InvalidArgument("FakeCuda: memory_bytes must be positive, not " +
                          std::to_string(options.memory_bytes));
  if (options.failing_device >= options.devices)
    throw InvalidArgument("FakeCuda: failing_device " + std::to_string(options.failing_device) +
                          " is none of the " + std::to_string(options.devices) + " devices");
}

bool same(const FakeCudaOptions& a, const FakeCudaOptions& b) {
  return a.devices == b.devices && a.memory_bytes == b.memory_bytes &&
         a.host_access == b.host_access && a.callers == b.callers &&
         a.failing_device == b.failing_device && a.fails_at == b.fails_at;
}

}  // namespace

const char* name(HostStop cause) {
  switch (cause) {
    case HostStop::kItem:
      return "item";
    case HostStop::kResultSize:
      return "size of a result";
    case HostStop::kCopyToHost:
      return "copy to host";
    case HostStop::kCopyToDevice:
      return "copy to device";
    case HostStop::kEvent:
      return "event";
    case HostStop::kStream:
      return "stream";
    case HostStop::kDevice:
      return "device";
  }
  return "";
}

int64_t FakeCudaCounts::stops() const {
  return std::accumulate(stops_by_cause.begin(), stops_by_cause.end(), int64_t{0});
}

FakeCudaCounts FakeCudaCounts::operator-(const FakeCudaCounts& earlier) const {
  FakeCudaCounts result = *this;
  result.operations -= earlier.operations;
  result.fallbacks -= earlier.fallbacks;
  result.copies -= earlier.copies;
  result.allocations -= earlier.allocations;
  result.captured -= earlier.captured;
  result.replays -= earlier.replays;
  result.replayed -= earlier.replayed;
  for (size_t i = 0; i < result.stops_by_cause.size(); ++i)
    result.stops_by_cause[i] -= earlier.stops_by_cause[i];
  return result;
}

std::string FakeCudaCounts::text() const {
  std::ostringstream text;
  text << operations << " operations, " << stops() << " host stops";
  if (replays > 0) text << ", " << replays << " replays of " << replayed << " operations";
  const char* separator = ": ";
  for (int i = 0; i < kHostStops; ++i) {
    const auto cause = static_cast<HostStop>(i);
    if (stops(cause) == 0) continue;
    text << separator << stops(cause) << ' ' << name(cause);
    separator = ", ";
  }
  return text.str();
}

std::string Race::text() const {
  const std::string of = "; the memory was made by " + memory;
  switch (kind) {
    case RaceKind::kReadAfterWrite:
      return later + " may read before " + earlier + " has written" + of;
    case RaceKind::kWriteAfterRead:
      return later + " may write before " + earlier + " has read" + of;
    case RaceKind::kWriteAfterWrite:
      return later + " may write before " + earlier + " has written" + of;
    case RaceKind::kFreedInUse:
      return "memory that " + earlier + " may still use was freed, and " + later +
             " may get it (record_stream, or keep the tensor until its stream has waited)" + of;
    case RaceKind::kHostAccess:
      return later + of;
  }
  return {};
}

FakeCuda& FakeCuda::install(const FakeCudaOptions& options) {
  static Mutex mutex;
  static FakeCuda* installed = nullptr;
  const MutexLock lock(mutex);
  check_options(options);
  if (installed != nullptr) {
    if (!same(options, installed->options()))
      throw InvalidArgument("FakeCuda is installed already, with other options");
    return *installed;
  }
  if (!possible())
    throw InvalidArgument(
        "FakeCuda plays CUDA in a CPU build of libtorch, and this program is linked with a CUDA "
        "build");
  fake::the_machine = new fake::Machine(options);  // stays: tensors may end after main()
  fake::register_allocator();
  fake::register_guard();
  fake::register_kernels();
  fake::register_graphs();
  fake::catch_faults();
  fake::load_libraries();
  installed = new FakeCuda;
  return *installed;
}

bool FakeCuda::possible() {
  const auto cuda = static_cast<size_t>(c10::DeviceType::CUDA);
  const bool guarded = c10::impl::device_guard_impl_registry[cuda].load() != nullptr;
  return fake::hooks_are_ours() && guarded == (fake::the_machine != nullptr);
}

const FakeCudaOptions& FakeCuda::options() const {
  return fake::machine().options;
}
FakeCudaCounts FakeCuda::counts() const {
  return fake::machine().tally.counts();
}
void FakeCuda::set_peer_access(bool possible) {
  fake::machine().peer_access = possible;
}

std::vector<Race> FakeCuda::take_races() {
  return fake::machine().races.take();
}

struct Counting::Scope {
  std::shared_ptr<fake::Host> host = fake::Host::current();
  FakeCudaCounts before = host->tally.counts();
  size_t stops_before = 0;
};

Counting::Counting() : scope_(std::make_unique<Scope>()) {
  scope_->host->watch(true);
  scope_->stops_before = scope_->host->stops().size();
}
Counting::~Counting() {
  scope_->host->watch(false);
}

FakeCudaCounts Counting::counts() const {
  return scope_->host->tally.counts() - scope_->before;
}

std::vector<std::string> Counting::stop_places() const {
  const std::vector<fake::StopPlace> stops = scope_->host->stops();
  std::vector<fake::PlacePtr> places;
  for (const fake::StopPlace& stop : stops) places.push_back(stop.place);
  fake::prepare_to_describe(places);
  std::vector<std::string> result;
  for (size_t i = scope_->stops_before; i < stops.size(); ++i)
    result.push_back(std::string(name(stops[i].cause)) + " in " + fake::describe(*stops[i].place));
  return result;
}

}  // namespace lockstep::inline v0::testing
