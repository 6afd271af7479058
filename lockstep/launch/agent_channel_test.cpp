#include "lockstep/launch/agent_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <future>

#include "lockstep/core/errors.h"

namespace lockstep::launch {
namespace agent_channel_test {

class AgentChannelTest : public testing::Test {
 protected:
  AgentChannel accept(const Secret& secret) {
    wait_ready(listener_.get(), POLLIN, Deadline::seconds(5), "accept");
    return AgentChannel(
        UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
        secret);
  }
  // Waits until a message has arrived.
  static std::vector<AgentMessage> receive(AgentChannel& channel) {
    while (true) {
      wait_ready(channel.fd(), POLLIN, Deadline::seconds(5), "a message");
      auto messages = channel.pump();
      if (!messages.empty()) return messages;
    }
  }

  const Secret secret_ = Secret::generate();
  const UniqueFd listener_ = listen_tcp({"127.0.0.1", 0});
  const HostPort address_ = local_address(listener_.get());
};

TEST_F(AgentChannelTest, MessagesOfAnyLengthGoBothWays) {
  auto connecting = std::async(std::launch::async, [&] {
    return AgentChannel::connect(address_, secret_, Deadline::seconds(5));
  });
  AgentChannel server = accept(secret_);
  while (connecting.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
    server.pump();
  AgentChannel client = connecting.get();
  EXPECT_EQ(client.peer().to_string(), address_.to_string());
  EXPECT_EQ(client.local().to_string(), server.peer().to_string());

  AgentMessage message;
  message.kind = AgentMessage::Kind::kOver;
  message.text.assign(300'000, 'x');
  client.send(message);
  auto heard = std::async(std::launch::async, [&] { return receive(server); });
  while (!client.sent_all()) client.pump();
  EXPECT_EQ(heard.get().at(0).text, message.text);
  message.text = "short";
  server.send(message);
  EXPECT_EQ(receive(client).at(0).text, "short");

  // A message sent before the end is still received.
  server.send(message);
  server.close();
  EXPECT_EQ(receive(client).size(), 1u);
  EXPECT_THROW(receive(client), PeerLost);
}

TEST_F(AgentChannelTest, AnotherSecretIsRefusedOnBothSides) {
  auto connecting = std::async(std::launch::async, [&] {
    AgentChannel::connect(address_, Secret::generate(), Deadline::seconds(5));
  });
  {
    AgentChannel server = accept(secret_);
    EXPECT_THROW(receive(server), StoreError);
  }
  EXPECT_THROW(connecting.get(), StoreError);
}

TEST_F(AgentChannelTest, AStrangersBytesAreRefused) {
  const UniqueFd stranger = connect_tcp(address_, Deadline::seconds(5));
  AgentChannel server = accept(secret_);
  const std::string noise = random_bytes(1000);
  write_exact(stranger.get(), noise.data(), noise.size(), Deadline::seconds(5));
  EXPECT_THROW(receive(server), StoreError);
}

}  // namespace agent_channel_test
}  // namespace lockstep::launch
