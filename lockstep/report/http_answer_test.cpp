#include "lockstep/report/http_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace lockstep::inline v0::http_answer_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::function<std::string()> kFour = [] { return std::string("a 4\n"); };

std::string answer_to(const std::string& request) {
  return http_answer(request, kFour).value_or("incomplete");
}

std::string for_host(const std::string& host) {
  return answer_to("GET /metrics HTTP/1.1\r\nAccept: */*\r\nhOsT: " + host + "\r\n\r\n");
}

TEST(HttpAnswer, GivesTheTextToGet) {
  const std::string answer = for_host("localhost:9400");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 4\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\na 4\n"));
  EXPECT_EQ(answer_to("GET /metrics HTTP/1.0\n\n"), answer) << "without a Host, and bare line ends";
  EXPECT_EQ(answer_to("GET /metrics?name=a HTTP/1.1\r\n\r\n"), answer);
}

TEST(HttpAnswer, WaitsForTheEndOfTheHeaders) {
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (size_t length = 0; length < request.size(); ++length)
    EXPECT_EQ(answer_to(request.substr(0, length)), "incomplete") << length;
  EXPECT_THAT(answer_to(request), StartsWith("HTTP/1.1 200"));
}

TEST(HttpAnswer, RefusesWhatIsNoGetOfMetrics) {
  EXPECT_THAT(answer_to("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(answer_to("GET /metricsx HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(answer_to("GET /../metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  for (const char* method : {"HEAD", "POST", "PUT", "DELETE", "OPTIONS", "get"}) {
    const std::string answer = answer_to(std::string(method) + " /metrics HTTP/1.1\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 ")) << method;
    EXPECT_THAT(answer, HasSubstr("\r\nAllow: GET\r\n")) << method;
  }
  for (const char* request : {"hello\n\n", " /metrics HTTP/1.1\r\n\r\n", "GET /metrics\r\n\r\n",
                              "GET /metrics HTTP/2\r\n\r\n", "\r\n\r\n", "GET  \r\n\r\n"})
    EXPECT_THAT(answer_to(request), StartsWith("HTTP/1.1 400 ")) << request;
}

TEST(HttpAnswer, BoundsARequest) {
  const std::string begin = "GET /metrics HTTP/1.1\r\nX: ";
  const std::string fits = begin + std::string(kMostRequestBytes - begin.size(), 'x');
  EXPECT_EQ(answer_to(fits), "incomplete");
  EXPECT_THAT(answer_to(fits + "x"), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(answer_to(fits + "\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer_to(fits + "x\r\n\r\n"), StartsWith("HTTP/1.1 431 "));
}

TEST(HttpAnswer, AsksForALoopbackHost) {
  for (const char* host : {"localhost", "LOCALHOST:1", "127.0.0.1:9400", "127.3.2.1", "[::1]:9400"})
    EXPECT_THAT(for_host(host), StartsWith("HTTP/1.1 200 ")) << host;
  for (const char* host : {"example.com", "example.com:9400", "127.example.com", "localhost.evil",
                           "192.168.0.1", "[::2]", "[::1", ""})
    EXPECT_THAT(for_host(host), StartsWith("HTTP/1.1 403 ")) << host;
}

TEST(HttpAnswer, SaysWhyThereIsNoText) {
  const auto answer = http_answer("GET /metrics HTTP/1.1\r\n\r\n", []() -> std::string {
    throw std::runtime_error("the run is over");
  });
  EXPECT_THAT(answer.value(), StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(answer.value(), EndsWith("\r\n\r\nthe run is over\n"));
}

}  // namespace
}  // namespace lockstep::inline v0::http_answer_test
