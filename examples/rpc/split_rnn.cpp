// A language model split over two processes: the embeddings and the decoder, which are large where
// the vocabulary is, live in one; the LSTM is local to the other, which trains all of it through a
// context and a DistributedOptimizer. It computes what one process computes, bit for bit, and
// checks that. Runs on 2 ranks of its own when started by hand.
//   split_rnn [TEXT]
// TEXT: a file to learn; without one it makes sums in words.
#include <ATen/Functions.h>
#include <lockstep/core/errors.h>
#include <lockstep/rpc/optimizer.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "../on_ranks.h"
#include "../usage.h"

namespace {

namespace rpc = lockstep::rpc;

constexpr int64_t kWidth = 64, kHidden = 128, kTexts = 16, kTokens = 24;
constexpr int kSteps = 60;
constexpr double kRate = 1e-2;

struct Embeddings {
  explicit Embeddings(int64_t vocabulary) : table(vocabulary, kWidth) {}
  at::Tensor forward(const at::Tensor& ids) { return table(ids); }
  torch::nn::Embedding table;
};
struct Decoder {
  explicit Decoder(int64_t vocabulary) : linear(kHidden, vocabulary) {}
  at::Tensor forward(const at::Tensor& hidden) { return linear(hidden); }
  torch::nn::Linear linear;
};

// A part's parameters where it lives, as references.
std::vector<rpc::RRef<at::Tensor>> references_of(const rpc::Agent& agent,
                                                 const std::vector<at::Tensor>& parameters) {
  std::vector<rpc::RRef<at::Tensor>> all;
  for (const at::Tensor& one : parameters)
    all.push_back(agent.own(std::make_shared<at::Tensor>(one)));
  return all;
}

rpc::Registry functions() {
  rpc::Registry registry;
  registry.add("embeddings", [](int64_t vocabulary, int64_t seed) {
    torch::manual_seed(seed);
    return std::make_shared<Embeddings>(vocabulary);
  });
  registry.add("decoder", [](int64_t vocabulary, int64_t seed) {
    torch::manual_seed(seed);
    return std::make_shared<Decoder>(vocabulary);
  });
  registry.add("embed", &Embeddings::forward);
  registry.add("decode", &Decoder::forward);
  registry.add("embeddings_parameters", [](Embeddings& part) {
    return references_of(rpc::Agent::current(), part.table->parameters());
  });
  registry.add("decoder_parameters", [](Decoder& part) {
    return references_of(rpc::Agent::current(), part.linear->parameters());
  });
  rpc::add_optimizers(registry);
  return registry;
}

// Rows of a text that go on from batch to batch: [tokens, texts], and what comes after each of
// them.
struct Batches {
  explicit Batches(const std::string& text) {
    std::array<int64_t, 256> number;
    number.fill(-1);
    std::vector<int64_t> ids;
    for (const unsigned char c : text) {
      if (number[c] < 0) number[c] = vocabulary++;
      ids.push_back(number[c]);
    }
    const int64_t each = static_cast<int64_t>(ids.size()) / kTexts;
    if (each <= kTokens)
      throw lockstep::InvalidArgument("the text is too short: give " +
                                      std::to_string(kTexts * (kTokens + 1)) +
                                      " characters or more");
    rows = at::tensor(ids).narrow(0, 0, each * kTexts).view({kTexts, each}).t().contiguous();
  }
  // x and y of a step, and whether the rows begin anew.
  std::tuple<at::Tensor, at::Tensor, bool> at_step(int64_t step) const {
    const int64_t place = step % ((rows.size(0) - 1) / kTokens) * kTokens;
    return {rows.narrow(0, place, kTokens), rows.narrow(0, place + 1, kTokens), place == 0};
  }
  int64_t vocabulary = 0;
  at::Tensor rows;
};

// Trains an LSTM between two functions; -> the losses. `step` is one step of all optimizers.
using Layer = std::function<at::Tensor(const at::Tensor&)>;
std::vector<double> train(
    const Batches& batches, torch::nn::LSTM& lstm, const Layer& embed, const Layer& decode,
    const std::function<void(const std::function<at::Tensor()>& loss)>& step) {
  std::vector<double> losses;
  std::tuple<at::Tensor, at::Tensor> state;
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto [x, y, anew] = batches.at_step(i);
    if (anew) state = {at::zeros({1, kTexts, kHidden}), at::zeros({1, kTexts, kHidden})};
    step([&, x = x, y = y] {
      auto [hidden, after] = lstm->forward(embed(x), state);
      const at::Tensor loss = at::cross_entropy_loss(decode(hidden).flatten(0, 1), y.flatten());
      state = {std::get<0>(after).detach(), std::get<1>(after).detach()};
      losses.push_back(loss.item<double>());
      return loss;
    });
  }
  return losses;
}

torch::nn::LSTM make_lstm() {
  torch::manual_seed(2);
  return torch::nn::LSTM(kWidth, kHidden);
}

std::vector<double> train_split(const rpc::Agent& agent, const Batches& batches) {
  const auto parts =
      agent.to("parts", {.order = 1});  // one after another: both draw from one generator
  const auto embeddings = parts.remote<Embeddings>("embeddings", batches.vocabulary, 1);
  const auto decoder = parts.remote<Decoder>("decoder", batches.vocabulary, 3);
  torch::nn::LSTM lstm = make_lstm();

  std::vector<rpc::RRef<at::Tensor>> parameters = references_of(agent, lstm->parameters());
  for (const auto& one :
       embeddings.rpc_sync<std::vector<rpc::RRef<at::Tensor>>>("embeddings_parameters"))
    parameters.push_back(one);
  for (const auto& one : decoder.rpc_sync<std::vector<rpc::RRef<at::Tensor>>>("decoder_parameters"))
    parameters.push_back(one);
  rpc::DistributedOptimizer optimizer(agent, parameters,
                                      {.name = "adam", .options = {{"lr", kRate}}});

  return train(
      batches, lstm,
      [&](const at::Tensor& ids) { return embeddings.rpc_sync<at::Tensor>("embed", ids); },
      [&](const at::Tensor& hidden) { return decoder.rpc_sync<at::Tensor>("decode", hidden); },
      [&](const std::function<at::Tensor()>& loss) {
        rpc::AutogradContext context(agent);  // gradients are its own: there is nothing to zero
        context.backward({loss()});
        optimizer.step(context);
      });
}

std::vector<double> train_whole(const Batches& batches) {
  torch::manual_seed(1);
  Embeddings embeddings(batches.vocabulary);
  torch::manual_seed(3);
  Decoder decoder(batches.vocabulary);
  torch::nn::LSTM lstm = make_lstm();
  std::vector<at::Tensor> parameters = lstm->parameters();
  for (const at::Tensor& one : embeddings.table->parameters()) parameters.push_back(one);
  for (const at::Tensor& one : decoder.linear->parameters()) parameters.push_back(one);
  torch::optim::Adam optimizer(parameters, torch::optim::AdamOptions(kRate));

  return train(
      batches, lstm, [&](const at::Tensor& ids) { return embeddings.forward(ids); },
      [&](const at::Tensor& hidden) { return decoder.forward(hidden); },
      [&](const std::function<at::Tensor()>& loss) {
        optimizer.zero_grad();
        loss().backward();
        optimizer.step();
      });
}

std::string sums_in_words() {
  constexpr std::array kNumbers{"zero", "one",   "two",   "three", "four", "five",
                                "six",  "seven", "eight", "nine",  "ten"};
  std::string text;
  for (size_t i = 0; text.size() < 20000; ++i) {
    const size_t a = i * 7 % kNumbers.size(), b = i * 5 / 3 % (kNumbers.size() - a);
    text += std::string(kNumbers[a]) + " plus " + kNumbers[b] + " is " + kNumbers[a + b] + "\n";
  }
  return text;
}

std::string read_text(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw lockstep::InvalidArgument("cannot read the text '" + file + "'");
  return {std::istreambuf_iterator<char>(in), {}};
}

void example(lockstep::Communicator& comm, const std::string& file) {
  if (comm.size() < 2) throw lockstep::InvalidArgument("split_rnn needs 2 ranks");
  const std::string name = comm.rank() == 0 ? "trainer" : comm.rank() == 1 ? "parts" : "";
  rpc::Agent agent = rpc::init(comm, functions(), {.name = name});
  if (comm.rank() == 0) {
    const Batches batches(file.empty() ? sums_in_words() : read_text(file));
    const std::vector<double> split = train_split(agent, batches), whole = train_whole(batches);
    std::printf(
        "loss %.3f to %.3f after %d steps of %lld characters, split over two processes; %s\n",
        split.front(), split.back(), kSteps, static_cast<long long>(kTexts * kTokens),
        split == whole ? "in one process the same, bit for bit" : "IN ONE PROCESS ANOTHER ONE");
  }
  agent.shutdown(std::chrono::minutes(10));  // the parts serve until the trainer comes here, too
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = usage_asked(argc, argv, "split_rnn [TEXT]")) return *code;
  const std::string file = argc > 1 ? argv[1] : "";
  return on_ranks(2, [&](lockstep::Communicator& comm) { example(comm, file); });
}
