#include "lockstep/trace/call_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <type_traits>
#include <utility>

#include "lockstep/core/cache_line.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/shared_memory.h"
#include "lockstep/core/ticks.h"

namespace lockstep::inline v0::trace {
namespace {

constexpr uint64_t kMagic = 0x3744524f42534c4c;  // "LLSBORD7"
constexpr int kMaxRanks = 1 << 14;
constexpr size_t kWords = sizeof(CallRecord) / sizeof(uint64_t);

static_assert(sizeof(CallRecord) % sizeof(uint64_t) == 0 &&
              std::is_trivially_copyable_v<CallRecord>);
static_assert(std::atomic<uint64_t>::is_always_lock_free, "the words are shared between processes");

using Words = std::array<uint64_t, kWords>;

struct Header {
  std::atomic<uint64_t> magic;
  std::atomic<uint64_t> ranks;
};

// The stamp is 2 i + 1 while call i is written, and 2 i + 2 once it is complete. Words are stored
// with release and loaded with acquire, so a reader that saw a word of a later call also sees its
// stamp.
struct Entry {
  std::atomic<uint64_t> stamp;
  std::array<std::atomic<uint64_t>, kWords> words;
  // Of the same call: KeptCall's.
  std::atomic<uint64_t> waited;
  std::atomic<uint64_t> abandoned;
};

constexpr size_t kStepWords = 16;

struct alignas(kLinePair) Slot {
  std::atomic<uint64_t> calls;  // calls begun so far
  std::atomic<uint64_t> pid;
  std::atomic<uint64_t> entered_ticks;
  std::atomic<int64_t> entered_unix_ns;
  std::atomic<int64_t> gave_up;  // 0: no; otherwise the late rank + 2
  std::atomic<uint64_t> presence;
  std::atomic<uint64_t> step_stamp;  // odd while the step is written
  std::array<std::atomic<uint64_t>, kStepWords> step;
  std::array<Entry, CallBoard::kRecords> entries;
  std::atomic<uint64_t> remote_calls;  // slots of remote calls used so far
  std::array<Entry, CallBoard::kRemoteRecords> remote;
};

constexpr uint64_t kRemote = uint64_t{1} << 63;  // set in the number of a remote call

constexpr size_t kHeaderSize = kLinePair;
constexpr size_t kEndedWord = offsetof(CallRecord, ended) / sizeof(uint64_t);

size_t board_size(int ranks) {
  return kHeaderSize + sizeof(Slot) * static_cast<size_t>(ranks);
}

// Reads call i, if it is there and complete.
bool read_entry(const Entry& entry, uint64_t i, KeptCall& call) {
  if (entry.stamp.load(std::memory_order_acquire) != 2 * i + 2) return false;
  Words words;
  for (size_t w = 0; w < kWords; ++w) words[w] = entry.words[w].load(std::memory_order_acquire);
  const uint64_t waited = entry.waited.load(std::memory_order_acquire);
  const uint64_t abandoned = entry.abandoned.load(std::memory_order_acquire);
  if (entry.stamp.load(std::memory_order_acquire) != 2 * i + 2) return false;
  call = {i, std::bit_cast<CallRecord>(words), waited, abandoned};
  return true;
}

// The entry's stamp is 2 i + 1.
void write_entry(Entry& entry, uint64_t i, const CallRecord& record, bool waits = false) {
  const auto words = std::bit_cast<Words>(record);
  entry.waited.store(waits ? record.begun : 0, std::memory_order_release);
  entry.abandoned.store(0, std::memory_order_release);
  for (size_t w = 0; w < kWords; ++w) entry.words[w].store(words[w], std::memory_order_release);
  entry.stamp.store(2 * i + 2, std::memory_order_release);
}

// The entry of a call that is still kept, or null.
Entry* entry_of(Slot* slot, uint64_t call) {
  if (slot == nullptr || call == CallBoard::kNoRoom) return nullptr;
  const uint64_t i = call & ~kRemote;
  Entry& entry = call == i ? slot->entries[i % CallBoard::kRecords]
                           : slot->remote[i % CallBoard::kRemoteRecords];
  return entry.stamp.load(std::memory_order_relaxed) == 2 * i + 2 ? &entry : nullptr;
}

// Takes the slot of a call that has ended.
uint64_t begin_remote(Slot& slot, const CallRecord& record) {
  for (uint64_t tries = 0; tries < CallBoard::kRemoteRecords; ++tries) {
    const uint64_t i = slot.remote_calls.fetch_add(1, std::memory_order_relaxed);
    Entry& entry = slot.remote[i % CallBoard::kRemoteRecords];
    uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
    if (stamp % 2 != 0) continue;  // another thread is writing it
    if (stamp != 0 && entry.words[kEndedWord].load(std::memory_order_acquire) == 0) continue;
    if (!entry.stamp.compare_exchange_strong(stamp, 2 * i + 1, std::memory_order_relaxed)) continue;
    write_entry(entry, i, record);
    return kRemote | i;
  }
  return CallBoard::kNoRoom;
}

// The rank's step, or "" when it is written at every look.
std::string read_step(const Slot& slot) {
  for (int look = 0; look < 4; ++look) {
    const uint64_t stamp = slot.step_stamp.load(std::memory_order_acquire);
    if (stamp % 2 != 0) continue;
    std::array<uint64_t, kStepWords> words{};
    for (size_t w = 0; w < kStepWords; ++w) words[w] = slot.step[w].load(std::memory_order_acquire);
    if (slot.step_stamp.load(std::memory_order_acquire) != stamp) continue;
    const char* text = reinterpret_cast<const char*>(words.data());
    return {text, ::strnlen(text, sizeof words)};
  }
  return "";
}

}  // namespace

struct CallBoard::Mapping {
  Mapping(UniqueFd descriptor, int rank_count, bool to_write = true)
      : fd(std::move(descriptor)), ranks(rank_count), size(board_size(rank_count)) {
    base = ::mmap(nullptr, size, to_write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                  fd.get(), 0);
    if (base == MAP_FAILED) throw system_error("mmap of the call board", errno);
  }
  ~Mapping() { ::munmap(base, size); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  Header& header() const { return *static_cast<Header*>(base); }
  Slot* slot(int rank) const {
    if (rank < 0 || rank >= ranks) return nullptr;
    return reinterpret_cast<Slot*>(static_cast<char*>(base) + kHeaderSize) + rank;
  }

  UniqueFd fd;
  int ranks;
  size_t size;
  void* base = nullptr;
  std::atomic<int> watchers{0};
  std::atomic<int> markers{0};
};

CallBoard::CallBoard(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
CallBoard::CallBoard(CallBoard&&) noexcept = default;
CallBoard& CallBoard::operator=(CallBoard&&) noexcept = default;
CallBoard::~CallBoard() = default;

CallBoard CallBoard::create(int ranks) {
  if (ranks < 1 || ranks > kMaxRanks) {
    throw InvalidArgument("a call board for " + std::to_string(ranks) + " ranks; 1 to " +
                          std::to_string(kMaxRanks) + " are possible");
  }
  UniqueFd fd = make_shared_memory("lockstep-board", board_size(ranks));
  auto mapping = std::make_unique<Mapping>(std::move(fd), ranks);
  // New pages are zero, so no record is published.
  mapping->header().ranks.store(static_cast<uint64_t>(ranks));
  mapping->header().magic.store(kMagic);
  return CallBoard(std::move(mapping));
}

std::optional<CallBoard> CallBoard::inherit(const EnvLookup& env) {
  const auto text = env("LOCKSTEP_BOARD_FD");
  const auto number = text ? parse_int(*text, 0, 1 << 20) : std::nullopt;
  if (!number) return std::nullopt;
  UniqueFd fd(::fcntl(static_cast<int>(*number), F_DUPFD_CLOEXEC, 3));
  if (!fd) return std::nullopt;
  return map(std::move(fd), /*to_write=*/true);
}

std::optional<CallBoard> CallBoard::look(UniqueFd fd) {
  return map(std::move(fd), /*to_write=*/false);
}

std::optional<CallBoard> CallBoard::map(UniqueFd fd, bool to_write) {
  struct stat info{};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &info) != 0)
    return std::nullopt;
  const auto size = static_cast<size_t>(info.st_size);
  if (size < board_size(1) || (size - kHeaderSize) % sizeof(Slot) != 0) return std::nullopt;
  const size_t ranks = (size - kHeaderSize) / sizeof(Slot);
  if (ranks > kMaxRanks) return std::nullopt;
  auto mapping = std::make_unique<Mapping>(std::move(fd), static_cast<int>(ranks), to_write);
  if (mapping->header().magic.load() != kMagic || mapping->header().ranks.load() != ranks)
    return std::nullopt;
  return CallBoard(std::move(mapping));
}

int CallBoard::ranks() const {
  return mapping_->ranks;
}
int CallBoard::fd() const {
  return mapping_->fd.get();
}

void CallBoard::enter(int local_rank, uint32_t pid) noexcept {
  Slot* slot = mapping_->slot(local_rank);
  if (slot == nullptr) return;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  slot->entered_ticks.store(ticks(), std::memory_order_relaxed);
  slot->entered_unix_ns.store(int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec,
                              std::memory_order_relaxed);
  slot->gave_up.store(0, std::memory_order_relaxed);
  slot->pid.store(pid, std::memory_order_release);
}

void CallBoard::leave(int local_rank) noexcept {
  Slot* slot = mapping_->slot(local_rank);
  if (slot == nullptr) return;
  slot->pid.store(0, std::memory_order_release);
  slot->gave_up.store(0, std::memory_order_relaxed);
  set_presence(local_rank, Presence::kAtWork);
  slot->calls.store(0, std::memory_order_release);
  for (Entry& entry : slot->entries) entry.stamp.store(0, std::memory_order_relaxed);
  for (Entry& entry : slot->remote) entry.stamp.store(0, std::memory_order_relaxed);
  // A process killed while writing has left an odd stamp, which would never become even again.
  slot->step_stamp.store(slot->step_stamp.load(std::memory_order_relaxed) & ~uint64_t{1},
                         std::memory_order_release);
  step(local_rank, "");
}

void CallBoard::step(int local_rank, std::string_view what) noexcept {
  Slot* slot = mapping_->slot(local_rank);
  if (slot == nullptr) return;
  std::array<uint64_t, kStepWords> words{};
  std::memcpy(words.data(), what.data(), std::min(what.size(), sizeof words));
  const uint64_t stamp = slot->step_stamp.load(std::memory_order_relaxed);
  slot->step_stamp.store(stamp + 1, std::memory_order_relaxed);
  for (size_t w = 0; w < kStepWords; ++w) slot->step[w].store(words[w], std::memory_order_release);
  slot->step_stamp.store(stamp + 2, std::memory_order_release);
}

void CallBoard::give_up(int local_rank, int late) noexcept {
  Slot* slot = mapping_->slot(local_rank);
  if (slot != nullptr) slot->gave_up.store(std::max(late, -1) + 2, std::memory_order_release);
}

void CallBoard::set_presence(int local_rank, Presence presence) noexcept {
  Slot* slot = mapping_->slot(local_rank);
  if (slot != nullptr)
    slot->presence.store(static_cast<uint64_t>(presence), std::memory_order_release);
}

CallBoard::Presence CallBoard::presence(int local_rank) const noexcept {
  const Slot* slot = mapping_->slot(local_rank);
  return slot == nullptr ? Presence::kAtWork
                         : static_cast<Presence>(slot->presence.load(std::memory_order_acquire));
}

uint64_t CallBoard::begin(int local_rank, const CallRecord& record, bool waits) noexcept {
  Slot* slot = mapping_->slot(local_rank);
  if (slot == nullptr) return 0;
  if (is_remote(record)) return begin_remote(*slot, record);
  const uint64_t i = slot->calls.fetch_add(1, std::memory_order_relaxed);
  Entry& entry = slot->entries[i % kRecords];
  entry.stamp.store(2 * i + 1, std::memory_order_relaxed);
  write_entry(entry, i, record, waits);
  return i;
}

void CallBoard::end(int local_rank, uint64_t call, uint64_t ticks) noexcept {
  if (Entry* entry = entry_of(mapping_->slot(local_rank), call))
    entry->words[kEndedWord].store(ticks, std::memory_order_release);
}

void CallBoard::wait(int local_rank, uint64_t call, uint64_t ticks) noexcept {
  if (Entry* entry = entry_of(mapping_->slot(local_rank), call))
    entry->waited.store(ticks, std::memory_order_release);
}

void CallBoard::abandon(int local_rank, uint64_t call, uint64_t ticks) noexcept {
  Entry* entry = entry_of(mapping_->slot(local_rank), call);
  if (entry != nullptr && entry->abandoned.load(std::memory_order_relaxed) == 0)
    entry->abandoned.store(ticks, std::memory_order_release);
}

void CallBoard::watch_ends(bool on) noexcept {
  mapping_->watchers.fetch_add(on ? 1 : -1, std::memory_order_relaxed);
}

bool CallBoard::watches_ends() const noexcept {
  return mapping_->watchers.load(std::memory_order_relaxed) > 0;
}

void CallBoard::mark_calls(bool on) noexcept {
  mapping_->markers.fetch_add(on ? 1 : -1, std::memory_order_relaxed);
}

bool CallBoard::marks_calls() const noexcept {
  return mapping_->markers.load(std::memory_order_relaxed) > 0;
}

uint64_t CallBoard::calls(int local_rank) const noexcept {
  const Slot* slot = mapping_->slot(local_rank);
  return slot == nullptr ? 0 : slot->calls.load(std::memory_order_acquire);
}

std::vector<KeptCall> CallBoard::calls_from(int local_rank, uint64_t first) const {
  std::vector<KeptCall> result;
  const Slot* slot = mapping_->slot(local_rank);
  if (slot == nullptr) return result;
  const uint64_t calls = slot->calls.load(std::memory_order_acquire);
  KeptCall call;
  for (uint64_t i = std::max(first, calls > kRecords ? calls - kRecords : 0); i < calls; ++i) {
    if (read_entry(slot->entries[i % kRecords], i, call)) result.push_back(call);
  }
  return result;
}

std::vector<CallRecord> CallBoard::records(int local_rank) const {
  std::vector<CallRecord> result;
  const Slot* slot = mapping_->slot(local_rank);
  if (slot == nullptr) return result;
  for (const KeptCall& call : calls_from(local_rank, 0)) result.push_back(call.record);
  KeptCall call;
  for (const Entry& entry : slot->remote) {
    const uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
    if (stamp != 0 && read_entry(entry, stamp / 2 - 1, call)) result.push_back(call.record);
  }
  return result;
}

BoardRecord CallBoard::read(int local_rank) const {
  BoardRecord result;
  const Slot* slot = mapping_->slot(local_rank);
  if (slot == nullptr) return result;
  result.pid = pid(local_rank);
  result.step = read_step(*slot);
  const int64_t gave_up = slot->gave_up.load(std::memory_order_acquire);
  result.gave_up = gave_up != 0;
  if (result.gave_up) result.late = static_cast<int>(gave_up - 2);
  const uint64_t calls = slot->calls.load(std::memory_order_acquire);
  KeptCall call;
  // The last one may be incomplete; remote calls are reported by the trace, not here.
  constexpr uint64_t kLookedAt = 64;
  for (uint64_t i = calls; i > 0 && i + kLookedAt > calls; --i) {
    if (!read_entry(slot->entries[(i - 1) % kRecords], i - 1, call)) continue;
    result.sequence = call.record.sequence;
    result.state = call.record.ended == 0 ? 1 : 2;
    result.call = describe(call.record);
    break;
  }
  return result;
}

uint32_t CallBoard::pid(int local_rank) const noexcept {
  const Slot* slot = mapping_->slot(local_rank);
  return slot == nullptr ? 0 : static_cast<uint32_t>(slot->pid.load(std::memory_order_acquire));
}

BoardClock CallBoard::entered(int local_rank) const noexcept {
  const Slot* slot = mapping_->slot(local_rank);
  if (slot == nullptr) return {};
  return {slot->entered_ticks.load(std::memory_order_relaxed),
          slot->entered_unix_ns.load(std::memory_order_relaxed)};
}

}  // namespace lockstep::inline v0::trace
