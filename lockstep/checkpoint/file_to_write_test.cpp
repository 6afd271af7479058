// A file of tensors has the same contents whatever way it is written.
#include "lockstep/checkpoint/internal/file_to_write.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/pages.h"

namespace lockstep::inline v0::file_to_write_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct File {
  std::string bytes;
  FileSum sum;
  friend bool operator==(const File&, const File&) = default;
};

File written(const internal::FileToWrite& contents, const fs::path& path) {
  AsideFile file(path);
  file.allocate(contents.bytes());
  const FileSum sum = contents.write(file);
  file.commit();
  std::ifstream in(path, std::ios::binary);
  File result{{std::istreambuf_iterator<char>(in), {}}, sum};
  EXPECT_EQ(result.bytes.size(), contents.bytes());
  EXPECT_EQ(sum, checksum_of(result.bytes.data(), result.bytes.size()));
  fs::remove(path);
  return result;
}

class FileToWrite : public ::testing::Test {
 protected:
  void TearDown() override { at::set_num_threads(threads_); }

  // The file made from its tensors, compared with those made from a snapshot, by one thread and by
  // two, which do not follow later changes of the tensors.
  std::string by_all_doors(const std::function<NamedTensors()>& make, const fs::path& path) {
    const Metadata metadata{{"format", "pt"}};
    const File direct = written(internal::FileToWrite(make(), metadata), path);
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      const NamedTensors tensors = make();
      internal::FileToWrite contents(tensors, metadata);
      const PageMemory memory(contents.bytes());
      contents.snapshot(memory.data());
      for (const auto& [name, tensor] : tensors) tensor.zero_();
      EXPECT_EQ(written(contents, path), direct) << threads << " threads";
    }
    return direct.bytes;
  }

  const int threads_ = at::get_num_threads();
  TestDirectory dir_;
};

at::Tensor numbered(int64_t bytes) {
  constexpr int64_t kPeriod = 4093;  // no two pages are equal
  return at::arange(kPeriod).to(at::kByte).repeat({bytes / kPeriod + 1}).narrow(0, 0, bytes);
}

TEST_F(FileToWrite, EverySizeComesWholeByEveryDoor) {
  constexpr int64_t kPage = kDirectAlignment, kMiB = 1 << 20;
  std::vector<int64_t> sizes = {0, 1, 63, 64, kPage - 1, kPage, 3 * kPage + 5};
  // Around the size that is written past the page cache, the size that is staged at once, and twice
  // that.
  for (const int64_t near : {kMiB, 8 * kMiB, 16 * kMiB}) {
    for (const int64_t less : {kPage, int64_t{257}, int64_t{128}, int64_t{0}})
      sizes.push_back(near - less);
    sizes.push_back(near + 3);
  }
  for (const fs::path& where : {dir_.path(), fs::path("/dev/shm")}) {
    if (!fs::is_directory(where)) continue;
    const fs::path path = where / ("file_to_write_test-" + std::to_string(::getpid()));
    for (const int64_t size : sizes) {
      SCOPED_TRACE(::testing::Message() << where << ", " << size << " bytes");
      const std::string bytes =
          by_all_doors([&] { return NamedTensors{{"t", numbered(size)}}; }, path);
      const at::Tensor expected = numbered(size);
      EXPECT_TRUE(bytes.ends_with(std::string(static_cast<const char*>(expected.const_data_ptr()),
                                              static_cast<size_t>(size))));
    }
  }
}

TEST_F(FileToWrite, ManyTensorsOfAllKindsFollowEachOther) {
  const auto make = [] {
    NamedTensors tensors;
    for (int i = 0; i < 40; ++i) {
      const std::string name = std::to_string(i);
      tensors.emplace_back("f" + name, at::arange(100'003 + i).to(at::kFloat));
      tensors.emplace_back("h" + name, at::arange(i).to(at::kHalf));
      tensors.emplace_back("b" + name, numbered(i * i));
    }
    tensors.emplace_back("turned", at::arange(12'000).view({100, 120}).t());
    tensors.emplace_back("step", at::full({}, 7, at::kLong));
    tensors.emplace_back("conjugate", at::view_as_complex(at::rand({5, 2})).conj().resolve_conj());
    return tensors;
  };
  const auto again = [&] {
    at::manual_seed(3);
    return make();
  };
  by_all_doors(again, dir_ / "file");
  // The tensors that are read back.
  const NamedTensors tensors = again();
  write_safetensors(dir_ / "file", tensors);
  const Safetensors file = read_safetensors(dir_ / "file");
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(file.find(name)->equal(tensor)) << name;
}

TEST_F(FileToWrite, AConjugateViewIsWrittenAsItsValues) {
  const at::Tensor values = at::view_as_complex(at::arange(10).to(at::kFloat).view({5, 2}));
  const auto make = [&] { return NamedTensors{{"c", values.clone().conj()}}; };
  by_all_doors(make, dir_ / "file");
  write_safetensors(dir_ / "file", make());
  EXPECT_TRUE(read_safetensors(dir_ / "file").find("c")->equal(values.conj().resolve_conj()));
}

TEST_F(FileToWrite, ATensorThatCannotBeMadeIsTheCallersError) {
  std::vector<TensorToCome> tensors;
  tensors.push_back(
      {.name = "a", .sizes = {3'000'000}, .make = [] { return at::zeros({3'000'000}); }});
  tensors.push_back({.name = "b", .sizes = {1}, .make = []() -> at::Tensor {
                       throw CheckpointError("b cannot be had");
                     }});
  EXPECT_THAT(message_of<CheckpointError>([&] { stream_safetensors(dir_ / "file", tensors); }),
              HasSubstr("b cannot be had"));
  EXPECT_TRUE(dir_.names().empty());
}

// A limit on a process's file size simulates a disk that refuses some of the pieces that are under way.
TEST_F(FileToWrite, WhatTheDiskRefusesIsOneErrorAndLeavesNothing) {
  internal::FileToWrite plain(NamedTensors{{"t", numbered(20 << 20)}});
  internal::FileToWrite copied(NamedTensors{{"t", numbered(20 << 20)}});
  const PageMemory memory(copied.bytes());
  copied.snapshot(memory.data());
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small{.rlim_cur = 4 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::vector<std::string> messages;
  for (const internal::FileToWrite* contents : {&plain, &copied}) {
    messages.push_back(message_of<SystemError>([&] {
      AsideFile file(dir_ / "file");
      contents->write(file);
    }));
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  for (const std::string& message : messages)
    EXPECT_THAT(message, HasSubstr("cannot write " + (dir_ / "file").string() + ": "));
  EXPECT_TRUE(dir_.names().empty());
}

}  // namespace
}  // namespace lockstep::inline v0::file_to_write_test
