// Helpers of all rooms' tests: a directory that is removed with its owner, a lack of descriptors,
// and an error as text.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::inline v0 {

// Empty at first; removed with its contents.
class TestDirectory {
 public:
  TestDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  // "" where there is no such file.
  std::string read(const std::string& name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }
  // Sorted names in the directory itself.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

// While the object lives, this process may open `spare` more descriptors and no others. The limit
// is a number that no descriptor may reach, so the free numbers below the highest open one are
// taken first. Other threads should open and close none meanwhile.
class FewDescriptors {
 public:
  explicit FewDescriptors(int spare) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    int highest = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      highest = std::max(highest, std::stoi(entry.path().filename()));
    while (true) {
      const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      if (fd < 0) throw std::runtime_error("open /dev/null");
      taken_.push_back(fd);
      if (fd >= highest) break;
    }
    leave(spare);
  }
  ~FewDescriptors() {
    ::setrlimit(RLIMIT_NOFILE, &before_);
    for (const int fd : taken_) ::close(fd);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

  // Counted from the beginning, not from now.
  void leave(int spare) const {
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(taken_.back() + 1 + spare);
    ::setrlimit(RLIMIT_NOFILE, &few);
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

// The sanitizers slow everything down and use memory and address space of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// This process's memory, in bytes: its address space, and the part of it with pages.
struct MemoryUse {
  size_t virtual_bytes = 0;
  size_t resident_bytes = 0;
};
inline MemoryUse memory_use() {
  MemoryUse use;
  std::ifstream("/proc/self/statm") >> use.virtual_bytes >> use.resident_bytes;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return {use.virtual_bytes * page, use.resident_bytes * page};
}

// The message of the E that `call` throws; for another exception or none, a message that says so.
template <typename E, typename Call>
std::string message_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no exception";
}

}  // namespace lockstep::inline v0
