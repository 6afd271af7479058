#include "lockstep/testing/network_namespaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::testing {
namespace network_namespaces_mp_test {

class NetworkNamespacesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = NetworkNamespaces::unavailable(); !why.empty()) GTEST_SKIP() << why;
  }

  struct Connection {
    UniqueFd client, server;
  };
  // From host 0 to host 1.
  static Connection connect(const NetworkNamespaces& network) {
    UniqueFd listener;
    network.on(1, [&] { listener = listen_tcp({network.address(1), 0}); });
    const HostPort address = local_address(listener.get());
    Connection connection;
    network.on(0, [&] { connection.client = connect_tcp(address, Deadline::seconds(5)); });
    wait_ready(listener.get(), POLLIN, Deadline::seconds(5), "accept");
    connection.server = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return connection;
  }
  static bool readable(const UniqueFd& fd, int ms) {
    pollfd waiting{fd.get(), POLLIN, 0};
    return ::poll(&waiting, 1, ms) > 0;
  }
};

TEST_F(NetworkNamespacesTest, HostsReachEachOtherAndNobodyElseReachesThem) {
  const NetworkNamespaces network(2);
  Connection connection = connect(network);
  write_exact(connection.client.get(), "hello", 5, Deadline::seconds(5));
  char text[5];
  read_exact(connection.server.get(), text, 5, Deadline::seconds(5));
  EXPECT_EQ(std::string(text, 5), "hello");
  EXPECT_EQ(peer_address(connection.server.get()).host, "10.77.0.1");
  EXPECT_THROW(listen_tcp({network.address(0), 0}), SystemError) << "not an address of this host";
}

TEST_F(NetworkNamespacesTest, ACommandRunsOnItsHost) {
  const NetworkNamespaces network(2);
  SubprocessOptions options;
  options.command = network.prefix(1);
  for (const char* word : {"sh", "-c", "test $(hostname) = host1 && exec sleep 60"}) {
    options.command.emplace_back(word);
  }
  Subprocess process(options);
  const Deadline deadline = Deadline::seconds(5);
  while (network.processes(1).empty() && !deadline.expired()) std::this_thread::yield();
  EXPECT_THAT(network.processes(1), ::testing::Contains(process.pid()));
  EXPECT_TRUE(network.processes(0).empty());
}

TEST_F(NetworkNamespacesTest, NothingRunsOnAfterItsEnd) {
  std::optional<NetworkNamespaces> network(std::in_place, 1);
  SubprocessOptions options;
  options.command = network->prefix(0);
  options.command.insert(options.command.end(), {"sleep", "60"});
  Subprocess process(options);
  const Deadline deadline = Deadline::seconds(5);
  while (network->processes(0).empty() && !deadline.expired()) std::this_thread::yield();
  std::optional<ExitStatus> status;
  // The destructor waits until nobody is left, and a zombie still is.
  std::thread waiter([&] { status = process.wait(Deadline::seconds(20)); });
  network.reset();
  waiter.join();
  EXPECT_EQ(status->signal, SIGKILL);
}

TEST_F(NetworkNamespacesTest, ACutCableLosesWhatIsSentUntilItIsMended) {
  NetworkNamespaces network(2);
  Connection connection = connect(network);
  network.cut(1);
  write_exact(connection.client.get(), "x", 1, Deadline::seconds(5));
  EXPECT_FALSE(readable(connection.server, 300));
  network.mend(1);
  EXPECT_TRUE(readable(connection.server, 5000)) << "TCP sends it again";
}

TEST_F(NetworkNamespacesTest, BytesAreCountedAndARateIsKept) {
  NetworkNamespaces network(2);
  try {
    network.shape("80mbit");
  } catch (const LaunchError& error) {
    GTEST_SKIP() << error.what();
  }
  Connection connection = connect(network);
  const uint64_t before = network.bytes_sent(0);
  const std::string data(4'000'000, 'x');
  const auto start = std::chrono::steady_clock::now();
  std::thread writer([&] {
    write_exact(connection.client.get(), data.data(), data.size(), Deadline::seconds(30));
  });
  std::string received(data.size(), '\0');
  read_exact(connection.server.get(), received.data(), received.size(), Deadline::seconds(30));
  writer.join();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(received, data);
  EXPECT_GT(seconds, 0.25) << "4 MB at 10 MB/s, less the bucket's 0.5 MB";
  const uint64_t sent = network.bytes_sent(0) - before;
  EXPECT_GE(sent, data.size());
  EXPECT_LT(sent, data.size() * 12 / 10);
}

}  // namespace network_namespaces_mp_test
}  // namespace lockstep::inline v0::testing
