#include "lockstep/core/net.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0 {
namespace net_test {

using testing::AllOf;
using testing::HasSubstr;

Deadline soon() {
  return Deadline::seconds(20);
}

TEST(HostPort, ParsesAndPrints) {
  EXPECT_EQ(parse_host_port("127.0.0.1:29500").to_string(), "127.0.0.1:29500");
  EXPECT_EQ(parse_host_port("[::1]:0").to_string(), "[::1]:0");
  EXPECT_EQ(parse_host_port("host.example:65535").host, "host.example");
  for (const char* wrong : {"", "host", "host:", ":1", "host:65536", "host:-1", "host:1x"}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { parse_host_port(wrong); }), HasSubstr(wrong));
  }
}

TEST(Resolve, NumericStaysAndNamesAreLookedUp) {
  EXPECT_EQ(resolve("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(resolve("::1"), "::1");
  EXPECT_EQ(resolve("localhost"), "127.0.0.1") << "IPv4 first";
  EXPECT_THAT(message_of<InvalidArgument>([] { resolve("no-such-host.invalid"); }),
              AllOf(HasSubstr("no-such-host.invalid"), HasSubstr("does not resolve")));
}

struct Pair {
  Pair() : listener(listen_tcp({"127.0.0.1", 0})), address(local_address(listener.get())) {
    client = connect_tcp(address, soon());
    wait_ready(listener.get(), POLLIN, soon(), "accept");
    server.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }
  UniqueFd listener;
  HostPort address;
  UniqueFd client, server;
};

TEST(Sockets, WholeTransfersWhateverTheSize) {
  Pair pair;
  EXPECT_EQ(peer_address(pair.client.get()).to_string(), pair.address.to_string());
  std::string sent(8 << 20, 'x');
  for (size_t i = 0; i < sent.size(); i += 1009) sent[i] = static_cast<char>(i);
  std::thread writer([&] { write_exact(pair.client.get(), sent.data(), sent.size(), soon()); });
  std::string received(sent.size(), '\0');
  read_exact(pair.server.get(), received.data(), received.size(), soon());
  writer.join();
  EXPECT_TRUE(received == sent);
}

TEST(Sockets, ReadingEndsAtTheDeadline) {
  Pair pair;
  char byte;
  EXPECT_THAT(message_of<Timeout>(
                  [&] { read_exact(pair.server.get(), &byte, 1, Deadline::seconds(0.02)); }),
              HasSubstr("0.02 s"));
}

TEST(Sockets, WritingEndsAtTheDeadline) {
  Pair pair;
  const std::string large(64 << 20, 'x');
  EXPECT_THROW(write_exact(pair.client.get(), large.data(), large.size(), Deadline::seconds(0.05)),
               Timeout);
}

TEST(Sockets, AClosedPeerIsPeerLost) {
  Pair pair;
  pair.client.reset();
  char byte;
  EXPECT_THROW(read_exact(pair.server.get(), &byte, 1, soon()), PeerLost);
  const std::string large(16 << 20, 'x');
  EXPECT_THROW(write_exact(pair.server.get(), large.data(), large.size(), soon()), PeerLost)
      << "and no SIGPIPE";
}

TEST(Sockets, APortInUseNamesItsOwner) {
  const UniqueFd first = listen_tcp({"127.0.0.1", 0});
  const HostPort address = local_address(first.get());
  EXPECT_THAT(message_of<SystemError>([&] { listen_tcp(address); }),
              AllOf(HasSubstr(address.to_string()),
                    HasSubstr("held by process " + std::to_string(::getpid()))));
  EXPECT_EQ(port_owner(1), "");
}

TEST(Sockets, ConnectingWaitsForTheServerUntilTheDeadline) {
  HostPort address;
  {
    const UniqueFd free = listen_tcp({"127.0.0.1", 0});
    address = local_address(free.get());
  }
  EXPECT_THAT(message_of<Timeout>([&] { connect_tcp(address, Deadline::seconds(0.05)); }),
              HasSubstr(address.to_string()));
  UniqueFd late;
  std::thread server([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    late = listen_tcp(address);
  });
  EXPECT_TRUE(connect_tcp(address, soon()));
  server.join();
}

TEST(Sockets, WhatCannotPassIsNotTriedAgain) {
  const HostPort own{"127.0.0.1", 29500}, own_v6{"::1", 29500}, other{"10.77.0.9", 29500};
  for (const int error :
       {ECONNREFUSED, ETIMEDOUT, ECONNRESET, ENOTCONN, EADDRNOTAVAIL, EMFILE, ENFILE, ENOBUFS}) {
    EXPECT_TRUE(may_connect_later(own, error));
    EXPECT_TRUE(may_connect_later(other, error));
  }
  for (const int error : {ENETUNREACH, EHOSTUNREACH, ENETDOWN}) {
    EXPECT_FALSE(may_connect_later(own, error));
    EXPECT_FALSE(may_connect_later(own_v6, error));
    EXPECT_TRUE(may_connect_later(other, error));  // its network may still come up
  }
  for (const int error : {EACCES, EPERM, EINVAL, EAFNOSUPPORT})
    EXPECT_FALSE(may_connect_later(other, error));
  EXPECT_STREQ(connect_error(own, ENETUNREACH).what(),
               "127.0.0.1 cannot be reached (Network is unreachable); is the interface lo up? "
               "\"ip link set lo up\" sets it up");
  EXPECT_STREQ(connect_error(other, EPERM).what(),
               "cannot connect to 10.77.0.9:29500: Operation not permitted");
}

// A new network namespace, whose loopback interface is down as always at first.
TEST(Sockets, WhereTheLoopbackInterfaceIsDownConnectingSaysSoAtOnce) {
  std::optional<std::string> said;  // nullopt: such namespaces are not available here
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) != 0) return;
    said = message_of<SystemError>([] { connect_tcp({"127.0.0.1", 29500}, soon()); });
  }).join();
  if (!said) GTEST_SKIP() << "no network namespace can be made here (not root)";
  EXPECT_THAT(*said, HasSubstr("127.0.0.1 cannot be reached"));
  EXPECT_THAT(*said, HasSubstr("is the interface lo up?"));
}

TEST(Sockets, IPv6WhereThereIsOne) {
  UniqueFd listener;
  try {
    listener = listen_tcp({"::1", 0});
  } catch (const SystemError&) {
    GTEST_SKIP() << "no IPv6 on this host";
  }
  const HostPort address = local_address(listener.get());
  EXPECT_EQ(address.host, "::1");
  EXPECT_TRUE(connect_tcp(address, soon()));
}

}  // namespace net_test
}  // namespace lockstep::inline v0
