#include "lockstep/report/metrics_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/net.h"
#include "lockstep/report/http_answer.h"
#include "lockstep/report/http_get_test.h"

namespace lockstep::inline v0::metrics_endpoint_test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kGet = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

UniqueFd connect_to(const MetricsEndpoint& endpoint) {
  return connect_tcp({"127.0.0.1", endpoint.port()}, http_deadline());
}

std::string ask(const MetricsEndpoint& endpoint, const std::string& request = kGet) {
  return http_get(endpoint.port(), request);
}

TEST(MetricsEndpoint, GivesTheTextOfTheMoment) {
  std::atomic<int> asked{0};
  const MetricsEndpoint endpoint(
      0, [&] { return "asked " + std::to_string(asked.fetch_add(1)) + "\n"; });
  EXPECT_THAT(ask(endpoint),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("\r\n\r\nasked 0\n")));
  EXPECT_THAT(ask(endpoint), EndsWith("\r\n\r\nasked 1\n"));
  EXPECT_THAT(ask(endpoint, "GET /else HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_EQ(asked.load(), 2);
}

TEST(MetricsEndpoint, ReadsARequestInPiecesAndWritesALongAnswer) {
  const std::string text(8 << 20, 'x');
  const MetricsEndpoint endpoint(0, [&] { return text; });
  const UniqueFd fd = connect_to(endpoint);
  for (const char c : kGet) write_exact(fd.get(), &c, 1, http_deadline());
  EXPECT_THAT(read_http_answer(fd.get()), EndsWith("\r\n\r\n" + text));
}

TEST(MetricsEndpoint, AClientMayEndItsSide) {
  const MetricsEndpoint endpoint(0, [] { return std::string("a 1\n"); });
  for (const std::string& request : {kGet, kGet.substr(0, 10)}) {
    const UniqueFd fd = connect_to(endpoint);
    write_exact(fd.get(), request.data(), request.size(), http_deadline());
    ASSERT_EQ(::shutdown(fd.get(), SHUT_WR), 0);
    const std::string answer = read_http_answer(fd.get());
    if (request == kGet)
      EXPECT_THAT(answer, EndsWith("a 1\n"));
    else
      EXPECT_EQ(answer, "") << "half a request is none";
  }
}

TEST(MetricsEndpoint, ListensOnTheLoopbackInterfaceOnly) {
  const MetricsEndpoint endpoint(0, [] { return std::string(); });
  const UniqueFd fd = connect_to(endpoint);
  EXPECT_EQ(peer_address(fd.get()).host, "127.0.0.1");
  // 127.0.0.2 is of the same interface, and would be reached if it listened on all addresses.
  EXPECT_THROW(
      connect_tcp({"127.0.0.2", endpoint.port()}, Deadline::after(std::chrono::milliseconds(200))),
      Error);
}

TEST(MetricsEndpoint, ASilentClientIsDroppedAndDelaysNoOther) {
  const MetricsEndpoint endpoint(0, [] { return std::string("a 1\n"); },
                                 {.time = std::chrono::milliseconds(300)});
  const UniqueFd silent = connect_to(endpoint), begins = connect_to(endpoint);
  write_exact(begins.get(), "GET", 3, http_deadline());
  EXPECT_THAT(ask(endpoint), EndsWith("a 1\n"));
  EXPECT_EQ(read_http_answer(silent.get()), "");
  EXPECT_EQ(read_http_answer(begins.get()), "");
}

TEST(MetricsEndpoint, MoreConnectionsCloseTheOldest) {
  const MetricsEndpoint endpoint(0, [] { return std::string("a 1\n"); },
                                 {.time = std::chrono::seconds(60), .connections = 3});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(connect_to(endpoint));
  EXPECT_THAT(ask(endpoint), EndsWith("a 1\n"));
  EXPECT_EQ(read_http_answer(silent.front().get()), "");
}

TEST(MetricsEndpoint, ARequestThatIsTooLongGetsItsAnswer) {
  const MetricsEndpoint endpoint(0, [] { return std::string("a 1\n"); });
  const std::string answer =
      ask(endpoint,
          "GET /metrics HTTP/1.1\r\nX: " + std::string(3 * kMostRequestBytes, 'x') + "\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(ask(endpoint), EndsWith("a 1\n"));
}

TEST(MetricsEndpoint, RefusesAPortThatIsTaken) {
  std::optional<MetricsEndpoint> first;
  first.emplace(0, [] { return std::string("a 1\n"); });
  const uint16_t port = first->port();
  const std::string number = std::to_string(port);
  const std::string refused =
      message_of<InvalidArgument>([&] { MetricsEndpoint second(port, [] { return ""; }); });
  EXPECT_THAT(refused, AllOf(StartsWith("/metrics: port " + number + " of 127.0.0.1 is taken"),
                             HasSubstr("held by process "), EndsWith("; give another")));
  EXPECT_EQ(refused.find('\n'), std::string::npos);
  EXPECT_THAT(message_of<InvalidArgument>([&] { check_metrics_ports("metrics_port", port, 1); }),
              StartsWith("metrics_port is " + number + ": port " + number));
  EXPECT_THAT(ask(*first), EndsWith("a 1\n")) << "the first still answers";
  first.reset();
  check_metrics_ports("metrics_port", port, 1);
  const MetricsEndpoint third(port, [] { return std::string("a 3\n"); });
  EXPECT_THAT(ask(third), EndsWith("a 3\n")) << "an earlier connection does not keep the port";
}

TEST(MetricsEndpoint, RefusesPortsThatThereAreNot) {
  EXPECT_EQ(message_of<InvalidArgument>([] { check_metrics_ports("metrics_port", 65535, 2); }),
            "metrics_port is 65535; give 1 to 65534");
  EXPECT_EQ(message_of<InvalidArgument>([] { check_metrics_ports("metrics_port", 0, 1); }),
            "metrics_port is 0; give 1 to 65535");
}

}  // namespace
}  // namespace lockstep::inline v0::metrics_endpoint_test
