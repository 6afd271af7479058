// A transport to which unauthenticated peers connect.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/rpc/internal/directory.h"
#include "lockstep/rpc/internal/hello.h"
#include "lockstep/rpc/internal/transport.h"
#include "lockstep/rpc/transport_test_support.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::inline v0::rpc::internal {

// A Unix socket, and a connection to it by plain system calls.
inline UniqueFd local_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}
inline bool connect_socket(const UniqueFd& socket, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0;
}

class Strangers : public ::testing::Test {
 protected:
  Strangers() { server_.start(handlers()); }
  LinkHandlers handlers() {
    return {.received =
                [this](const std::shared_ptr<Link>& link, Incoming& message) {
                  ++received_;
                  if (message.head.kind == MessageKind::kRequest)
                    link->send({MessageKind::kResponse, message.head.call}, message.body, {}, {},
                               Link::When::kNow);
                },
            .lost = [this](const std::shared_ptr<Link>&, const std::string&) { ++lost_; }};
  }
  Entry entry() { return *Entry::decode(*store_->try_get(entry_key("server"))); }
  // Alternates between both sockets.
  UniqueFd connect(bool tcp = false) {
    Entry where = entry();
    Attempt attempt = try_connect(where, tcp ? "elsewhere" : where.host_identity, soon());
    EXPECT_TRUE(attempt.fd) << attempt.error;
    return std::move(attempt.fd);
  }
  Hello hello(const std::string& name) {
    Hello hello;
    hello.peer = {name, 7, 1, "nowhere"};
    hello.host_identity = "nowhere";
    return hello;
  }
  // A peer that knows the secret.
  UniqueFd introduced(bool tcp = false) {
    UniqueFd fd = connect(tcp);
    prove(fd.get(), secret(), soon());
    const Introduction introduction = introduce(fd.get(), hello("odd"), soon());
    EXPECT_EQ(introduction.other.peer.name, "server");
    return fd;
  }
  static void send(const UniqueFd& fd, std::string_view bytes) {
    write_exact(fd.get(), bytes.data(), bytes.size(), soon());
  }
  // Reads until the other end hangs up.
  static std::string until_closed(const UniqueFd& fd) {
    std::string all;
    char bytes[4096];
    while (true) {
      try {
        wait_ready(fd.get(), POLLIN, soon(), "the end");
      } catch (const Timeout&) {
        ADD_FAILURE() << "the connection stays open";
        return all;
      }
      const ssize_t n = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno == ECONNRESET)) return all;
      if (n > 0) all.append(bytes, static_cast<size_t>(n));
    }
  }
  // The server still works.
  void expect_served(int round) {
    std::atomic<bool> done{false};
    Transport client(reactor_, store_, secret(), {.name = "client" + std::to_string(round)},
                     soon());
    client.start({.received = [&](const auto&, Incoming&) { done = true; },
                  .lost = [](const auto&, const auto&) {}});
    const auto link = client.link_to("server", soon());
    EXPECT_TRUE(link->send({MessageKind::kRequest, 1}, "x", {}, {}, Link::When::kMine));
    for (const Deadline deadline = soon(); !done && !deadline.expired(); std::this_thread::yield())
      link->receive_until([&] { return done.load(); }, deadline);
    EXPECT_TRUE(done);
  }

  Reactor reactor_{2};
  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  std::atomic<int> received_{0}, lost_{0};
  Transport server_{reactor_, store_, secret(), {.name = "server"}, soon()};
};

}  // namespace lockstep::inline v0::rpc::internal
