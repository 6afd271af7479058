#include "lockstep/insitu/ring_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/futex.h"

namespace lockstep::inline v0::insitu {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

constexpr uint64_t kMagic = 0x676e69722d736c0aULL;
constexpr uint32_t kVersion = 2;
constexpr uint64_t kMaxRing = uint64_t{1} << 44;
constexpr size_t kPage =
    4096;  // an alignment; pages of 64 KiB, as some ARM kernels have, do not matter
constexpr std::chrono::milliseconds kSlice{50};  // between two looks at who lives
constexpr int kRescans = 64;                     // of a search that others overtake
constexpr uint32_t kStateBits = 8;

size_t rounded(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

MemberState state_of(uint32_t word) {
  return static_cast<MemberState>(word & 3);
}
uint32_t with_state(uint32_t word, MemberState state) {
  return (word >> kStateBits << kStateBits) | static_cast<uint32_t>(state);
}
bool been_used(uint32_t word) {
  return state_of(word) != MemberState::kNone;
}

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

// A description of its own of the same file: locks belong to descriptions.
UniqueFd opened_again(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!again) throw system_error("insitu: opening " + path, errno);
  return again;
}

struct flock byte_lock(short type, uint32_t member) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = member;
  lock.l_len = 1;
  return lock;
}

// The geometry in a header, which may be anything.
Geometry checked_geometry(const std::byte* memory, uint64_t file_bytes) {
  // Copied first, since another process can change it between two looks.
  uint64_t magic;
  uint32_t version, slots, producers, schema_bytes;
  std::vector<std::byte> schema(kMaxEncodedSchema);
  std::memcpy(&magic, memory + offsetof(RingHeader, magic), sizeof magic);
  std::memcpy(&version, memory + offsetof(RingHeader, version), sizeof version);
  std::memcpy(&slots, memory + offsetof(RingHeader, slots), sizeof slots);
  std::memcpy(&producers, memory + offsetof(RingHeader, producers), sizeof producers);
  std::memcpy(&schema_bytes, memory + offsetof(RingHeader, schema_bytes), sizeof schema_bytes);
  std::memcpy(schema.data(), memory + offsetof(RingHeader, schema), schema.size());
  if (magic != kMagic) throw DataError("insitu: this memory is not a ring");
  if (version != kVersion)
    throw DataError("insitu: the ring is of version " + std::to_string(version) +
                    ", this program knows version " + std::to_string(kVersion) +
                    "; build both with the same Lockstep");
  if (slots < 1 || slots > kMaxSlots || producers < 1 || schema_bytes > schema.size())
    throw DataError("insitu: the ring's header has no sense");
  Geometry geometry{decode_schema(schema.data(), schema_bytes), slots, producers};
  if (geometry.total_bytes() != file_bytes)
    throw DataError("insitu: the ring has " + std::to_string(file_bytes) +
                    " bytes, and by its header " + std::to_string(geometry.total_bytes()));
  return geometry;
}

}  // namespace

void Event::raise() noexcept {
  if (asleep.load(std::memory_order_seq_cst) == 0) return;
  if (asleep.exchange(0, std::memory_order_seq_cst) == 0) return;
  count.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(count);
}

size_t Geometry::words_offset() const {
  return rounded(sizeof(RingHeader), kPage);
}
size_t Geometry::origins_offset() const {
  return words_offset() + rounded(slots * sizeof(uint64_t), 64);
}
size_t Geometry::slots_offset() const {
  return rounded(origins_offset() + slots * sizeof(uint32_t), kPage);
}
size_t Geometry::total_bytes() const {
  return slots_offset() + slots * slot_bytes();
}

UniqueFd RingMemory::make(const Geometry& geometry) {
  if (geometry.total_bytes() > kMaxRing)
    throw InvalidArgument("insitu: a ring of " + std::to_string(geometry.slots) + " slots of " +
                          std::to_string(geometry.slot_bytes()) + " bytes; 2^44 are possible");
  UniqueFd fd = make_shared_memory("lockstep-insitu", geometry.total_bytes());
  const SharedMapping mapping(fd.get(), geometry.total_bytes());
  // A ring that fits not into memory is refused here rather than by a SIGBUS in the middle.
  if (!mapping.populate() && (errno == ENOMEM || errno == EFAULT))
    throw system_error(
        "insitu: memory for a ring of " + std::to_string(geometry.total_bytes()) + " bytes",
        ENOMEM);
  auto& header = *new (mapping.data()) RingHeader;
  const std::vector<std::byte> schema = encode(geometry.schema);
  header.magic = kMagic;
  header.version = kVersion;
  header.slots = geometry.slots;
  header.producers = geometry.producers;
  header.schema_bytes = static_cast<uint32_t>(schema.size());
  std::copy(schema.begin(), schema.end(), header.schema.begin());
  return fd;
}

MappedRing map_ring(int memory) {
  struct stat file{};
  if (::fstat(memory, &file) != 0) throw system_error("insitu: fstat", errno);
  if (!has_sealed_size(memory) || static_cast<size_t>(file.st_size) < sizeof(RingHeader))
    throw DataError("insitu: this memory is not a ring");
  MappedRing ring{SharedMapping(memory, static_cast<size_t>(file.st_size)), {}};
  ring.geometry = checked_geometry(ring.mapping.data(), static_cast<uint64_t>(file.st_size));
  return ring;
}

RingMemory::RingMemory(UniqueFd memory, bool producer) : memory_(std::move(memory)) {
  MappedRing ring = map_ring(memory_.get());
  geometry_ = std::move(ring.geometry);
  mapping_ = std::move(ring.mapping);
  mapping_.populate();  // without it the first lap is slower
  lock_ = opened_again(memory_.get());
  enter(producer);
}

RingMemory::~RingMemory() {
  if (!lock_) return;
  mark_lost(member_);
  sweep_slots_of(member_);
}

std::byte* RingMemory::slot(uint32_t index) const {
  return mapping_.data() + geometry_.slots_offset() + index * geometry_.slot_bytes();
}
std::atomic<uint64_t>* RingMemory::words() const {
  return reinterpret_cast<std::atomic<uint64_t>*>(mapping_.data() + geometry_.words_offset());
}
std::atomic<uint32_t>* RingMemory::origins() const {
  return reinterpret_cast<std::atomic<uint32_t>*>(mapping_.data() + geometry_.origins_offset());
}

// Records that were never used come first, so that the rows of dead members stay readable.
void RingMemory::enter(bool producer) {
  for (const bool fresh : {true, false}) {
    for (uint32_t i = 0; i < kMaxMembers; ++i) {
      MemberRecord& record = header().members[i];
      if (fresh && been_used(record.state.load())) continue;
      struct flock lock = byte_lock(F_WRLCK, i);
      if (::fcntl(lock_.get(), F_OFD_SETLK, &lock) != 0) {
        if (errno == EAGAIN || errno == EACCES) continue;
        throw system_error("insitu: locking a member's place", errno);
      }
      member_ = i;
      mark_lost(i);
      sweep_slots_of(i);
      const uint32_t before = record.state.load();
      // First the record no longer counts: a producer must not count twice, not even for a moment.
      if (been_used(before) && record.producer.exchange(0) != 0)
        header().gone_producers.fetch_add(1);
      uint32_t used = header().used_members.load();
      while (used <= i && !header().used_members.compare_exchange_weak(used, i + 1)) {
      }
      // No member believes the record before its state says that it is open.
      record.state.store(with_state(before, MemberState::kNone));
      record.producer.store(producer ? 1 : 0);
      record.pid.store(::getpid());
      record.produced.store(0);
      record.dropped.store(0);
      record.consumed.store(0);
      record.waited_ns.store(0);
      entered_ = with_state(before + (1u << kStateBits), MemberState::kOpen);
      record.state.store(entered_);
      next_slot_.store(geometry_.slots * (i % 16) / 16);
      return;
    }
  }
  throw InvalidArgument("insitu: the ring has " + std::to_string(kMaxMembers) + " members already");
}

bool RingMemory::alive(uint32_t member) const noexcept {
  if (member == member_) return true;
  struct flock lock = byte_lock(F_WRLCK, member);
  if (::fcntl(lock_.get(), F_OFD_GETLK, &lock) != 0) return true;  // unknown: not ours to take
  return lock.l_type != F_UNLCK;
}

uint32_t RingMemory::used_members() const noexcept {
  return std::min(header().used_members.load(), kMaxMembers);
}

std::optional<RingMemory::Claim> RingMemory::claim(bool or_oldest) noexcept {
  const uint32_t count = slots();
  const uint32_t begin = next_slot_.load(std::memory_order_relaxed) % count;
  // One number for each attempt: a word with it is no other member's.
  const uint64_t number = header().next_number.fetch_add(1) + 1;
  const uint64_t wanted = SlotWord{SlotState::kWriting, member_, number}.pack();
  for (int scan = 0; scan < kRescans; ++scan) {
    std::optional<uint32_t> oldest;
    uint64_t oldest_bits = 0;
    for (uint32_t n = 0; n < count; ++n) {
      const uint32_t i = begin + n < count ? begin + n : begin + n - count;
      uint64_t bits = words()[i].load();
      const SlotWord word = SlotWord::unpack(bits);
      if (word.state == SlotState::kFree && words()[i].compare_exchange_strong(bits, wanted)) {
        next_slot_.store(i + 1, std::memory_order_relaxed);
        return Claim{i, number, false};
      }
      if (word.state == SlotState::kFull &&
          (!oldest || word.number < SlotWord::unpack(oldest_bits).number)) {
        oldest = i;
        oldest_bits = bits;
      }
    }
    if (!or_oldest || !oldest) return std::nullopt;
    if (words()[*oldest].compare_exchange_strong(oldest_bits, wanted)) {
      next_slot_.store(*oldest + 1, std::memory_order_relaxed);
      return Claim{*oldest, number, true};
    }
  }
  return std::nullopt;
}

void RingMemory::commit(uint32_t slot) noexcept {
  origins()[slot].store(member_);
  const uint64_t number = header().next_number.fetch_add(1) + 1;
  words()[slot].store(SlotWord{SlotState::kFull, 0, number}.pack());
  header().produced.fetch_add(1, std::memory_order_relaxed);
  own_record().produced.fetch_add(1, std::memory_order_relaxed);
  header().data.raise();
}

void RingMemory::count_dropped() noexcept {
  header().dropped.fetch_add(1, std::memory_order_relaxed);
  own_record().dropped.fetch_add(1, std::memory_order_relaxed);
}

void RingMemory::abandon(uint32_t slot) noexcept {
  words()[slot].store(SlotWord{}.pack());
  header().abandoned.fetch_add(1, std::memory_order_relaxed);
  header().space.raise();
}

// A producer fills a lower slot and then a higher one, behind and before a search that passes: the
// search finds the second sample alone. But whatever its producer committed before it was there when
// its number was given out. So a sample whose number is older than the search is taken, and another
// one once a second search finds nothing older.
std::optional<RingMemory::Taken> RingMemory::take() noexcept {
  const uint32_t count = slots();
  std::optional<uint32_t> before;
  uint64_t before_bits = 0;
  for (int scan = 0; scan < kRescans; ++scan) {
    std::optional<uint32_t> oldest;
    uint64_t oldest_bits = 0, oldest_number = 0;
    const uint64_t given_out = header().next_number.load() & SlotWord::kNumberMask;
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t bits = words()[i].load();
      const SlotWord word = SlotWord::unpack(bits);
      if (word.state != SlotState::kFull || (oldest && word.number >= oldest_number)) continue;
      oldest = i;
      oldest_bits = bits;
      oldest_number = word.number;
    }
    if (!oldest) return std::nullopt;
    const bool sure =
        oldest_number <= given_out || (before == oldest && before_bits == oldest_bits);
    before = oldest;
    before_bits = oldest_bits;
    if (!sure) continue;
    const uint64_t wanted = SlotWord{SlotState::kReading, member_, oldest_number}.pack();
    if (!words()[*oldest].compare_exchange_strong(oldest_bits, wanted)) continue;
    own_record().consumed.fetch_add(1, std::memory_order_relaxed);
    return Taken{*oldest, oldest_number, origins()[*oldest].load() % kMaxMembers};
  }
  return std::nullopt;
}

void RingMemory::release(uint32_t slot) noexcept {
  words()[slot].store(SlotWord{}.pack());
  header().consumed.fetch_add(1, std::memory_order_relaxed);
  header().space.raise();
}

void RingMemory::put_back(uint32_t slot, uint64_t number) noexcept {
  words()[slot].store(SlotWord{SlotState::kFull, 0, number}.pack());
  own_record().consumed.fetch_sub(1, std::memory_order_relaxed);
  header().data.raise();
}

void RingMemory::close() noexcept {
  closed_.store(true);
  uint32_t open = entered_;
  own_record().state.compare_exchange_strong(open, with_state(entered_, MemberState::kClosed));
  header().data.raise();
}

void RingMemory::mark_lost(uint32_t member) noexcept {
  MemberRecord& record = header().members[member];
  uint32_t word = record.state.load();
  if (state_of(word) != MemberState::kOpen) return;
  record.state.compare_exchange_strong(word, with_state(word, MemberState::kLost));
  header().data.raise();
}

// Only the caller's own slots, or those of a member that is known to be dead.
void RingMemory::sweep_slots_of(uint32_t member) noexcept {
  for (uint32_t i = 0; i < slots(); ++i) {
    uint64_t bits = words()[i].load();
    const SlotWord word = SlotWord::unpack(bits);
    if (word.owner != member) continue;
    if (word.state == SlotState::kWriting &&
        words()[i].compare_exchange_strong(bits, SlotWord{}.pack())) {
      header().abandoned.fetch_add(1, std::memory_order_relaxed);
      header().space.raise();
    } else if (word.state == SlotState::kReading &&
               words()[i].compare_exchange_strong(
                   bits, SlotWord{SlotState::kFull, 0, word.number}.pack())) {
      header().redelivered.fetch_add(1, std::memory_order_relaxed);
      header().data.raise();
    }
  }
}

void RingMemory::sweep() noexcept {
  swept_.store(now_ns(), std::memory_order_relaxed);
  // A word is read before its owner is looked at, and changed only from that value: a member that
  // has taken the dead one's place since writes other values. So only who lives may be remembered.
  std::array<bool, kMaxMembers> lives{};
  const auto dead = [&](uint32_t member) {
    if (member >= kMaxMembers) return true;  // of a broken word
    if (!lives[member]) lives[member] = alive(member);
    return !lives[member];
  };
  for (uint32_t i = 0; i < used_members(); ++i) {
    MemberRecord& record = header().members[i];
    uint32_t word = record.state.load();
    if (state_of(word) != MemberState::kOpen || !dead(i)) continue;
    if (record.state.compare_exchange_strong(word, with_state(word, MemberState::kLost)))
      header().data.raise();
  }
  for (uint32_t i = 0; i < slots(); ++i) {
    uint64_t bits = words()[i].load();
    const SlotWord word = SlotWord::unpack(bits);
    const bool writing = word.state == SlotState::kWriting;
    if (!writing && word.state != SlotState::kReading) continue;
    if (!dead(word.owner)) continue;
    const SlotWord after = writing ? SlotWord{} : SlotWord{SlotState::kFull, 0, word.number};
    if (!words()[i].compare_exchange_strong(bits, after.pack())) continue;
    (writing ? header().abandoned : header().redelivered).fetch_add(1, std::memory_order_relaxed);
    (writing ? header().space : header().data).raise();
  }
}

void RingMemory::sweep_now_and_then() noexcept {
  if (now_ns() - swept_.load(std::memory_order_relaxed) > std::chrono::nanoseconds(kSlice).count())
    sweep();
}

bool RingMemory::producers_finished() const noexcept {
  uint64_t been = header().gone_producers.load();
  for (uint32_t i = 0; i < used_members(); ++i) {
    const MemberRecord& record = header().members[i];
    const uint32_t word = record.state.load();
    if (!been_used(word) || record.producer.load() == 0) continue;
    if (state_of(word) == MemberState::kOpen) return false;
    ++been;
  }
  return been >= geometry_.producers;
}

RingMemory::Held RingMemory::held() const noexcept {
  Held held;
  for (uint32_t i = 0; i < slots(); ++i) {
    const SlotState state = SlotWord::unpack(words()[i].load()).state;
    held.full += state == SlotState::kFull ? 1 : 0;
    held.writing += state == SlotState::kWriting ? 1 : 0;
    held.reading += state == SlotState::kReading ? 1 : 0;
  }
  return held;
}

void RingMemory::sleep(Event& event, uint32_t seen, Deadline deadline) noexcept {
  futex_wait(event.count, seen, std::min<std::chrono::nanoseconds>(kSlice, deadline.remaining()));
  sweep_now_and_then();
}

RingMemory::Waiting::~Waiting() {
  ring_.own_record().waited_ns.fetch_add(static_cast<uint64_t>(start_.elapsed_seconds() * 1e9),
                                         std::memory_order_relaxed);
}

RingStats RingMemory::stats() const {
  const RingHeader& from = header();
  RingStats stats;
  stats.produced = from.produced.load();
  stats.dropped = from.dropped.load();
  stats.consumed = from.consumed.load();
  stats.abandoned = from.abandoned.load();
  stats.redelivered = from.redelivered.load();
  stats.slots = static_cast<int>(slots());
  const Held held = this->held();
  stats.full = static_cast<int>(held.full);
  stats.writing = static_cast<int>(held.writing);
  stats.reading = static_cast<int>(held.reading);
  for (const MemberRecord& record : from.members) {
    const uint32_t word = record.state.load();
    if (!been_used(word)) continue;
    MemberStats row;
    row.producer = record.producer.load() != 0;
    row.state = state_of(word);
    row.pid = record.pid.load();
    row.produced = record.produced.load();
    row.dropped = record.dropped.load();
    row.consumed = record.consumed.load();
    row.waited_seconds = static_cast<double>(record.waited_ns.load()) / 1e9;
    stats.members.push_back(row);
  }
  return stats;
}

}  // namespace lockstep::inline v0::insitu
