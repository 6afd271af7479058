#include "lockstep/train/prometheus_callback.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/report/http_get_test.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::prometheus_callback_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The values by name and labels: "lockstep_loss{rank=\"0\"}".
std::map<std::string, double> values_of(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream lines(text.substr(text.find("\r\n\r\n") + 4));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(values.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << line << " is there twice";
  }
  return values;
}

TEST(PrometheusCallback, ServesWhatEachRankDoes) {
  testing::run_threads(2, [](Communicator& comm) {
    Communicator of_gradients = comm.duplicate();
    const auto served = std::make_shared<PrometheusCallback>(comm, 0);
    const std::string rank = "rank=\"" + std::to_string(comm.rank()) + "\"";
    std::map<std::string, double> at_first = values_of(http_get(served->port())), at_third;
    int64_t step = 0;
    // Rank r has r + 1 samples a step, of loss n + 10 r.
    TrainTask task{
        .steps_per_epoch = 4,
        .begin_epoch = [](int64_t, int64_t) {},
        .step = [&]() -> StepResult {
          if (step == 3) at_third = values_of(http_get(served->port()));
          ++step;
          of_gradients.all_to_all(at::zeros({2, 50}, at::kByte));
          return {.loss = static_cast<double>(step + 10 * comm.rank()),
                  .samples = comm.rank() + 1,
                  .times = {.data = 0.5, .waiting = 0.25}};
        },
        .evaluate = [] { return Evaluation{.loss = 1.5, .accuracy = 0.75, .confusion = {}}; }};
    TrainLoop loop(comm, task, {.epochs = 1, .log_every = 2, .stop_signal = nullptr});
    loop.add(served);
    loop.run();
    const std::string answer = http_get(served->port());
    std::map<std::string, double> at_end = values_of(answer);

    const auto one = [&](const std::string& name, const std::string& more = "") {
      return "lockstep_" + name + "{" + rank + more + "}";
    };
    EXPECT_EQ(at_first.count(one("step")), 0u) << "there was no step yet";
    EXPECT_EQ(at_first.count(one("loss")), 0u);
    EXPECT_EQ(at_first.at(one("world_size")), 2);
    EXPECT_EQ(at_first.at(one("steps_total")), 0);

    EXPECT_EQ(at_third.at(one("step")), 3);
    EXPECT_EQ(at_third.at(one("epoch")), 1);
    EXPECT_EQ(at_third.at(one("samples_total")), 3 * (comm.rank() + 1));
    // The log of step 2: n + 20 / 3, as its steps were 1 and 2.
    EXPECT_NEAR(at_third.at(one("loss")), 1.5 + 20.0 / 3, 1e-12);
    EXPECT_EQ(at_third.at(one("step_seconds_total", ",part=\"data\"")), 1.5);
    EXPECT_EQ(at_third.at(one("step_seconds_total", ",part=\"waiting\"")), 0.75);
    EXPECT_EQ(at_third.at(one("op_bytes_total", ",op=\"all_to_all\"")), 300);

    EXPECT_EQ(at_end.at(one("info", ",backend=\"local\",device=\"cpu\"")), 1);
    EXPECT_EQ(at_end.at(one("step")), 4);
    EXPECT_EQ(at_end.at(one("steps_total")), 4);
    EXPECT_NEAR(at_end.at(one("loss")), 3.5 + 20.0 / 3, 1e-12);
    EXPECT_GT(at_end.at(one("samples_per_second")), 0);
    EXPECT_EQ(at_end.at(one("evaluation_loss")), 1.5);
    EXPECT_EQ(at_end.at(one("evaluation_accuracy")), 0.75);
    EXPECT_GT(at_end.at(one("last_step_seconds")), 0);
    EXPECT_GE(at_end.at(one("last_step_timestamp_seconds")),
              at_third.at(one("last_step_timestamp_seconds")));
    EXPECT_GT(at_third.at(one("last_step_timestamp_seconds")), 1.7e9) << "Unix time";
    EXPECT_GT(at_end.at(one("waited_seconds_total")), at_first.at(one("waited_seconds_total")));
    // Of the gradients' own group, and the loop's.
    EXPECT_EQ(at_end.at(one("op_calls_total", ",op=\"all_to_all\"")), 4);
    EXPECT_EQ(at_end.at(one("op_bytes_total", ",op=\"all_to_all\"")), 400);
    EXPECT_GE(at_end.at(one("op_bytes_total", ",op=\"all_reduce\"")), 3 * 24);
    EXPECT_EQ(at_end.at(one("op_calls_total", ",op=\"send\"")), 0);
    EXPECT_THAT(answer,
                AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("# TYPE lockstep_loss gauge\n"),
                      HasSubstr("# TYPE lockstep_op_bytes_total counter\n")));
  });
}

TEST(PrometheusCallback, ItsPortIsFreeOnceItIsGone) {
  testing::run_threads(1, [](Communicator& comm) {
    auto served = std::make_unique<PrometheusCallback>(comm, 0);
    const uint16_t port = served->port();
    EXPECT_THAT(message_of<InvalidArgument>([&] { PrometheusCallback(comm, port); }),
                HasSubstr("port " + std::to_string(port) + " of 127.0.0.1 is taken"));
    served.reset();
    EXPECT_EQ(PrometheusCallback(comm, port).port(), port);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::prometheus_callback_test
