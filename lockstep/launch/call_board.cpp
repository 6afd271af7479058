#include "lockstep/launch/call_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <new>
#include <type_traits>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::launch {
namespace {

constexpr uint64_t kMagic = 0x3144524f42534c4c;  // "LLSBORD1"
constexpr int kMaxRanks = 1 << 16;
constexpr size_t kWords = sizeof(BoardRecord) / sizeof(uint64_t);
constexpr int kMaxTries = 1000;  // a writer that overtakes a reader this often is not an honest one

static_assert(sizeof(BoardRecord) % sizeof(uint64_t) == 0 &&
              std::is_trivially_copyable_v<BoardRecord>);
static_assert(std::atomic<uint64_t>::is_always_lock_free, "the words are shared between processes");

using Words = std::array<uint64_t, kWords>;

struct Header {
  std::atomic<uint64_t> magic;
  std::atomic<uint64_t> ranks;
};

// `published` counts records; copies[published % 2] is the current one. The writer fills the other
// copy and then counts up. Words are stored with release and loaded with acquire: a reader that saw
// a word of a later record also sees its count.
struct alignas(64) Slot {
  std::atomic<uint64_t> published;
  std::array<std::atomic<uint64_t>, kWords> copies[2];
};

constexpr size_t kHeaderSize = 64;

size_t board_size(int ranks) {
  return kHeaderSize + sizeof(Slot) * static_cast<size_t>(ranks);
}

}  // namespace

struct CallBoard::Mapping {
  Mapping(UniqueFd descriptor, int rank_count)
      : fd(std::move(descriptor)), ranks(rank_count), size(board_size(rank_count)) {
    base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
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
  UniqueFd fd(::memfd_create("lockstep-board", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw system_error("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(board_size(ranks))) != 0)
    throw system_error("ftruncate", errno);
  // Nobody can shrink it under a mapping, which would turn reads into SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw system_error("sealing the call board", errno);
  }
  auto mapping = std::make_unique<Mapping>(std::move(fd), ranks);
  // New pages are zero: no record published.
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
  struct stat info{};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &info) != 0)
    return std::nullopt;
  const auto size = static_cast<size_t>(info.st_size);
  if (size < board_size(1) || (size - kHeaderSize) % sizeof(Slot) != 0) return std::nullopt;
  const size_t ranks = (size - kHeaderSize) / sizeof(Slot);
  if (ranks > kMaxRanks) return std::nullopt;
  auto mapping = std::make_unique<Mapping>(std::move(fd), static_cast<int>(ranks));
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

void CallBoard::publish(int local_rank, const BoardRecord& record) noexcept {
  Slot* slot = mapping_->slot(local_rank);
  if (slot == nullptr) return;
  const auto words = std::bit_cast<Words>(record);
  const uint64_t next = slot->published.load(std::memory_order_relaxed) + 1;
  auto& copy = slot->copies[next % 2];
  for (size_t i = 0; i < kWords; ++i) copy[i].store(words[i], std::memory_order_release);
  slot->published.store(next, std::memory_order_release);
}

BoardRecord CallBoard::read(int local_rank) const noexcept {
  const Slot* slot = mapping_->slot(local_rank);
  if (slot == nullptr) return {};
  Words words;
  uint64_t current = slot->published.load(std::memory_order_acquire);
  for (int tries = 0; tries < kMaxTries; ++tries) {
    const auto& copy = slot->copies[current % 2];
    for (size_t i = 0; i < kWords; ++i) words[i] = copy[i].load(std::memory_order_acquire);
    const uint64_t after = slot->published.load(std::memory_order_acquire);
    if (after == current) break;
    current = after;
  }
  auto record = std::bit_cast<BoardRecord>(words);
  record.call[sizeof record.call - 1] = '\0';
  return record;
}

}  // namespace lockstep::launch
