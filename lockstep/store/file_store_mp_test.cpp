// FileStore between processes: the test starts itself again as its participants.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/store/file_store.h"

namespace lockstep::inline v0 {
namespace file_store_mp_test {

constexpr int kProcesses = 4;
constexpr int kRounds = 100;

Deadline soon() {
  return Deadline::seconds(60);
}

class FileStoreProcesses : public testing::Test {
 protected:
  std::string path() const { return folder_ / "store"; }
  Subprocess participant(const std::string& name) const {
    ::setenv("LOCKSTEP_TEST_STORE", path().c_str(), 1);
    SubprocessOptions options;
    options.command = {"participant", "--gtest_also_run_disabled_tests",
                       "--gtest_filter=Participant.DISABLED_" + name};
    options.program = "/proc/self/exe";
    return Subprocess(options);
  }

  TestDirectory folder_;
};

FileStore participants_store() {
  return FileStore(::getenv("LOCKSTEP_TEST_STORE"));
}

// The tests below run these in processes of their own.
TEST(Participant, DISABLED_Counts) {
  FileStore store = participants_store();
  for (int i = 0; i < kRounds; ++i) {
    store.add("count", 1);
    store.set("last", std::to_string(::getpid()));
  }
  store_barrier(store, "end", kProcesses, soon());
  EXPECT_EQ(store.add("count", 0), kProcesses * kRounds);
}

TEST(Participant, DISABLED_WritesUntilKilled) {
  FileStore store = participants_store();
  for (int64_t i = 0;; ++i) store.set("key", std::string(100000, static_cast<char>('a' + i % 26)));
}

TEST_F(FileStoreProcesses, CountsAddUpAndAllMeet) {
  std::vector<Subprocess> processes;
  for (int i = 0; i < kProcesses; ++i) processes.push_back(participant("Counts"));
  for (Subprocess& process : processes) EXPECT_TRUE(process.wait(soon()).ok());
  FileStore store(path());
  EXPECT_EQ(store.get("count", soon()), std::to_string(kProcesses * kRounds));
}

// Whatever the writer was doing when it was killed, the file stays a store with complete values and
// a free lock.
TEST_F(FileStoreProcesses, AWriterThatIsKilledHurtsNobody) {
  FileStore store(path());
  for (int round = 0; round < 5; ++round) {
    Subprocess process = participant("WritesUntilKilled");
    store.remove("key");
    store.get("key", soon());
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 3 * round));
    process.signal(SIGKILL);
    EXPECT_EQ(process.wait(soon()).signal, SIGKILL);
    const std::string value = store.get("key", soon());
    EXPECT_EQ(value, std::string(100000, value.front()));
    EXPECT_EQ(store.add("rounds", 1), round + 1);
  }
}

}  // namespace file_store_mp_test
}  // namespace lockstep::inline v0
