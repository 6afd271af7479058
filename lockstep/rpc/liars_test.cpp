// A process that knows the job's secret may call functions, but must not be able to read memory.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/rpc/internal/process_read.h"
#include "lockstep/rpc/strangers_test_support.h"

namespace lockstep::inline v0::rpc::internal {
namespace liars_test {

using namespace std::chrono_literals;

// A peer that knows the secret and lies about the owner of its tensors' memory.
class Liars : public Strangers {
 protected:
  // Claims that its process has the server's word at `place(word)`. Returns whether the server
  // reads it.
  template <typename Place>
  bool server_reads(const UniqueFd& fd, const Hello& said, Place place) {
    prove(fd.get(), secret(), soon());
    send(fd, hello_frame(said));
    other_ = Hello::decode(body(fd));
    Ready ready{.reads = true, .address = place(other_.word)};
    send(fd, ready_frame(ready));
    return body(fd).at(0) == '\1';
  }
  // Sends a request whose tensor is claimed to be at that address.
  static void send_tensor_at(const UniqueFd& fd, const void* address) {
    FrameHead head;
    head.call = head.ticket = head.tensors = 1;
    std::string table;
    append_row(table, at::kByte, {100}, reinterpret_cast<uint64_t>(address));
    head.table = static_cast<uint32_t>(table.size());
    send(fd, std::string(reinterpret_cast<const char*>(&head), sizeof head) + table);
  }
  // Everything that it may know of the server, sent as if it were its own.
  Hello servers_own() {
    const Entry where = entry();
    Hello hello;
    hello.peer = {"liar", where.peer.incarnation, where.peer.pid, where.peer.host};
    hello.host_identity = where.host_identity;
    hello.word = random_word();
    return hello;
  }
  uint64_t put(uint64_t word) {
    word_ = word;
    return reinterpret_cast<uint64_t>(&word_);
  }

  Hello other_;
  volatile uint64_t word_ = 0;

 private:
  static std::string body(const UniqueFd& fd) {
    char head[kHeadBytes];
    read_exact(fd.get(), head, sizeof head, soon());
    std::string body(read_head(head).body, '\0');
    read_exact(fd.get(), body.data(), body.size(), soon());
    return body;
  }
};

// Over TCP no memory is read, whatever the peer claims and wherever the word is: here it is in the
// server's own process.
TEST_F(Liars, NobodysMemoryIsReadOverTcp) {
  const UniqueFd fd = connect(true);
  EXPECT_FALSE(server_reads(fd, servers_own(), [&](uint64_t word) { return put(word); }));
  EXPECT_EQ(other_.address, 0U) << "nor is it told where anything lies";
  send_tensor_at(fd, "something that is the server's");
  until_closed(fd);
  EXPECT_EQ(server_.refused(), 1U);
  EXPECT_EQ(received_, 0);
}

TEST_F(Liars, OnlyWhoHasTheWordOfThisConnectionIsRead) {
  const Hello said = servers_own();
  uint64_t first = 0;
  {
    const UniqueFd fd = connect();
    EXPECT_TRUE(server_reads(fd, said, [&](uint64_t word) { return put(first = word); }));
    send_tensor_at(fd, "something of its own");
    for (int i = 0; i < 60000 && received_ == 0; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(received_, 1);
  }
  const auto refused = [&](auto place) {
    const UniqueFd fd = connect();
    EXPECT_FALSE(server_reads(fd, said, place));
    send_tensor_at(fd, "something of its own");
    until_closed(fd);
  };
  refused([&](uint64_t) { return put(first); });  // a replay
  refused([&](uint64_t) { return put(said.word); });
  refused([&](uint64_t word) { return put(word) + 1; });
  refused([](uint64_t) { return uint64_t{0}; });
  refused([](uint64_t) { return UINT64_MAX; });
  // The server's own address for this end's word.
  refused([&](uint64_t) { return other_.address; });
  EXPECT_EQ(server_.refused(), 6U);
  EXPECT_EQ(received_, 1);
}

// A process that does nothing but connect `socket`, which its parent has, too.
class Connector {
 public:
  Connector(const UniqueFd& socket, const std::string& name) {
    int said[2];
    EXPECT_EQ(::pipe2(said, O_CLOEXEC), 0);
    const UniqueFd reader(said[0]);
    UniqueFd writer(said[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      const char* well = connect_socket(socket, name) ? "1" : "0";
      [[maybe_unused]] const auto written = ::write(said[1], well, 1);
      while (true) ::pause();
    }
    writer.reset();
    char well = 0;
    EXPECT_EQ(::read(reader.get(), &well, 1), 1);
    EXPECT_EQ(well, '1');
  }
  ~Connector() { end(); }
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  int64_t pid() const { return pid_; }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

// A peer names another process than the one that connected: here the server's own, which has the
// word at the named address.
TEST_F(Liars, AnotherProcessThanTheOneThatConnectedIsNotRead) {
  const UniqueFd fd = local_socket();
  const Connector connector(fd, entry().local);
  EXPECT_FALSE(server_reads(fd, servers_own(), [&](uint64_t word) { return put(word); }));
  send_tensor_at(fd, "something that is the server's");
  until_closed(fd);
  EXPECT_EQ(server_.refused(), 1U);
  EXPECT_EQ(received_, 0);
}

// Its PID may soon be reused.
TEST(OtherProcess, IsKnownToHaveEnded) {
  std::string name;
  const UniqueFd listener = listen_local(name), socket = local_socket();
  Connector connector(socket, name);
  const UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const OtherProcess process = other_process(accepted.get());
  EXPECT_EQ(process.pid, connector.pid());
  if (!process.process) GTEST_SKIP() << "the system has no pidfd_open()";
  EXPECT_FALSE(has_ended(process));
  connector.end();
  EXPECT_TRUE(has_ended(process));
  EXPECT_EQ(other_process(socket.get()).pid, ::getpid()) << "who listened";
}

}  // namespace liars_test
}  // namespace lockstep::inline v0::rpc::internal
