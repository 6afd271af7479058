// The file has eight bytes of magic, then records of key length, value length (32 bits,
// little-endian; kRemoved for a removal), key, value. Only the holder of the exclusive lock reads
// or writes.
#include "lockstep/store/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <thread>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

constexpr std::string_view kMagic = "LKSTFS1\n";
constexpr uint32_t kRemoved = 0xffffffff;
constexpr size_t kRecordHeader = 8;
constexpr auto kLockTimeout = std::chrono::seconds(60);
constexpr auto kMaxPause = std::chrono::milliseconds(10);

void put_u32(std::string& out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift & 0xff);
}

uint32_t get_u32(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

StoreError file_error(const std::filesystem::path& path, const std::string& call, int errnum) {
  return StoreError("file store " + path.string() + ": " + system_error(call, errnum).what());
}

}  // namespace

class LOCKSTEP_SCOPED_CAPABILITY FileStore::Lock {
 public:
  // Unchecked inside, because the analysis does not see that the member guard_ acquires and
  // releases the lock.
  explicit Lock(FileStore& store, Deadline deadline = Deadline::after(kLockTimeout))
      LOCKSTEP_ACQUIRE(store.mutex_) LOCKSTEP_UNCHECKED : guard_(store.mutex_),
                                                          store_(store) {
    store_.lock_file(deadline);
    try {
      store_.catch_up();
    } catch (...) {
      unlock();
      throw;
    }
  }
  ~Lock() LOCKSTEP_RELEASE() LOCKSTEP_UNCHECKED { unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  void unlock() noexcept { ::flock(store_.file_.get(), LOCK_UN); }

  MutexLock guard_;
  FileStore& store_;
};

FileStore::FileStore(std::filesystem::path path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  if (!file_) throw file_error(path_, "open", errno);
  struct stat info{};
  if (::fstat(file_.get(), &info) != 0) throw file_error(path_, "fstat", errno);
  if (!S_ISREG(info.st_mode))
    throw StoreError("file store " + path_.string() + ": not a regular file");
  const Lock lock(*this);  // writes or checks the magic
}

void FileStore::lock_file(Deadline deadline) {
  auto pause = std::chrono::microseconds(20);
  while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) throw file_error(path_, "flock", errno);
    if (deadline.expired()) {
      std::ostringstream text;
      text << "file store " << path_.string() << ": another process has held its lock for "
           << deadline.timeout_seconds() << " s; is one stopped?";
      throw Timeout(text.str());
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds(2));
  }
}

void FileStore::catch_up() {
  struct stat info{};
  if (::fstat(file_.get(), &info) != 0) throw file_error(path_, "fstat", errno);
  if (info.st_size < read_to_) {
    throw StoreError("file store " + path_.string() +
                     ": the file shrank; was it replaced by another job?");
  }
  if (info.st_size == read_to_ && read_to_ > 0) return;
  std::string news(static_cast<size_t>(info.st_size - read_to_), '\0');
  for (size_t have = 0; have < news.size();) {
    const ssize_t n = ::pread(file_.get(), news.data() + have, news.size() - have,
                              read_to_ + static_cast<off_t>(have));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw file_error(path_, "read", n < 0 ? errno : EIO);
    have += static_cast<size_t>(n);
  }
  std::string_view rest(news);
  if (read_to_ == 0) {
    if (!kMagic.starts_with(rest.substr(0, kMagic.size()))) {
      throw StoreError(
          "file store " + path_.string() +
          ": the file exists and is not a Lockstep store; give a new path for each job");
    }
    if (rest.size() < kMagic.size()) {
      if (::pwrite(file_.get(), kMagic.data(), kMagic.size(), 0) !=
          static_cast<ssize_t>(kMagic.size())) {
        throw file_error(path_, "write", errno);
      }
      rest = {};
    } else {
      rest.remove_prefix(kMagic.size());
    }
    read_to_ = static_cast<int64_t>(kMagic.size());
  }
  while (rest.size() >= kRecordHeader) {
    const uint32_t key_size = get_u32(rest), value_size = get_u32(rest.substr(4));
    if (key_size == 0 || key_size > kMaxStoreKey ||
        (value_size > kMaxStoreValue && value_size != kRemoved)) {
      throw StoreError("file store " + path_.string() + ": corrupt at byte " +
                       std::to_string(read_to_));
    }
    const size_t value_bytes = value_size == kRemoved ? 0 : value_size;
    const size_t size = kRecordHeader + key_size + value_bytes;
    if (rest.size() < size) break;
    const std::string key(rest.substr(kRecordHeader, key_size));
    if (value_size == kRemoved) {
      values_.remove(key);
    } else {
      values_.set(key, std::string(rest.substr(kRecordHeader + key_size, value_bytes)));
    }
    rest.remove_prefix(size);
    read_to_ += static_cast<int64_t>(size);
  }
  // A truncated record: its writer died. This process holds the lock, so no other is still writing
  // it.
  if (!rest.empty() && ::ftruncate(file_.get(), read_to_) != 0)
    throw file_error(path_, "ftruncate", errno);
}

void FileStore::append(const std::string& key, const std::string* value) {
  std::string record;
  put_u32(record, static_cast<uint32_t>(key.size()));
  put_u32(record, value == nullptr ? kRemoved : static_cast<uint32_t>(value->size()));
  record += key;
  if (value != nullptr) record += *value;
  for (size_t done = 0; done < record.size();) {
    const ssize_t n = ::pwrite(file_.get(), record.data() + done, record.size() - done,
                               read_to_ + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      // A full disk must not leave an incomplete record; if this fails, too, the next reader
      // truncates it.
      [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), read_to_);
      throw file_error(path_, "write", error);
    }
    done += static_cast<size_t>(n);
  }
  read_to_ += static_cast<int64_t>(record.size());
  if (value == nullptr) {
    values_.remove(key);
  } else {
    values_.set(key, *value);
  }
}

void FileStore::set(const std::string& key, const std::string& value) {
  offer(key, value, Deadline::after(kLockTimeout));
}

void FileStore::offer(const std::string& key, const std::string& value, Deadline answer) {
  check_store_key(key);
  check_store_value(key, value);
  const Lock lock(*this, answer);
  append(key, &value);
}

template <typename Use>
void FileStore::wait_then(std::span<const std::string> keys, Deadline deadline, Use use) {
  auto pause = std::chrono::microseconds(200);
  while (true) {
    std::string missing;
    {
      const Lock lock(*this);
      const std::string* key = values_.first_missing(keys);
      if (key == nullptr) {
        use(values_);
        return;
      }
      missing = *key;
    }
    if (deadline.expired()) throw missing_key(missing, deadline);
    std::this_thread::sleep_for(std::min<Deadline::Duration>(pause, deadline.remaining()));
    pause = std::min<std::chrono::microseconds>(pause * 2, kMaxPause);
  }
}

std::string FileStore::get(const std::string& key, Deadline deadline) {
  check_store_key(key);
  std::string value;
  wait_then({&key, 1}, deadline, [&](const KeyTable& values) { value = *values.find(key); });
  return value;
}

std::optional<std::string> FileStore::try_get(const std::string& key) {
  return peek(key, Deadline::after(kLockTimeout));
}

std::optional<std::string> FileStore::peek(const std::string& key, Deadline answer) {
  check_store_key(key);
  const Lock lock(*this, answer);
  const std::string* value = values_.find(key);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

int64_t FileStore::add(const std::string& key, int64_t delta) {
  check_store_key(key);
  const Lock lock(*this);
  const int64_t sum = values_.sum(key, delta);
  const std::string text = std::to_string(sum);
  append(key, &text);
  return sum;
}

std::string FileStore::compare_set(const std::string& key, const std::string& expected,
                                   const std::string& desired) {
  check_store_key(key);
  check_store_value(key, desired);
  const Lock lock(*this);
  if (values_.matches(key, expected)) {
    append(key, &desired);
    return desired;
  }
  const std::string* value = values_.find(key);
  return value == nullptr ? std::string() : *value;
}

void FileStore::wait(std::span<const std::string> keys, Deadline deadline) {
  for (const std::string& key : keys) check_store_key(key);
  wait_then(keys, deadline, [](const KeyTable&) {});
}

bool FileStore::remove(const std::string& key) {
  check_store_key(key);
  const Lock lock(*this);
  if (values_.find(key) == nullptr) return false;
  append(key, nullptr);
  return true;
}

}  // namespace lockstep::inline v0
