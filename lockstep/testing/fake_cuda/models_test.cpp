// Lockstep's models on a device that the host plays: the CPU's losses and gradients, no races, no stops of the host.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/model/bert.h"
#include "lockstep/model/resnet.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/model/vocabulary_loss.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

namespace lockstep::inline v0::testing {
namespace {

class ModelsOnFakeCuda : public WithoutRaces {
 protected:
  struct Pass {
    at::Tensor loss;
    std::vector<at::Tensor> gradients;
    FakeCudaCounts forward, backward;
    std::vector<std::string> stops;
  };

  // `make` gives a model and what computes its loss from a device's tensors.
  template <typename Make>
  static Pass pass(at::Device device, const Make& make) {
    torch::manual_seed(5);
    auto [model, loss_on] = make();
    model->to(device);
    Pass result;
    const auto compute = loss_on(device);
    Counting counted;
    result.loss = compute(model);
    result.forward = counted.counts();
    result.loss.backward();
    result.backward = counted.counts() - result.forward;
    result.stops = counted.stop_places();
    for (const at::Tensor& p : model->parameters())
      if (p.grad().defined()) result.gradients.push_back(p.grad().cpu());
    return result;
  }

  template <typename Make>
  void expect_as_on_cpu(const std::string& name, const Make& make) {
    const Pass host = pass(at::kCPU, make);
    const Pass device = pass(at::Device(at::kCUDA, 0), make);
    std::cout << name << ": forward " << device.forward.text() << "; backward "
              << device.backward.text() << '\n';
    for (const std::string& stop : device.stops) ADD_FAILURE() << name << " stops: " << stop;
    EXPECT_NEAR(device.loss.item<double>(), host.loss.item<double>(), 1e-5) << name;
    ASSERT_EQ(device.gradients.size(), host.gradients.size()) << name;
    for (size_t i = 0; i < host.gradients.size(); ++i) {
      const double most = host.gradients[i].abs().max().item<double>();
      const double off = (device.gradients[i] - host.gradients[i]).abs().max().item<double>();
      EXPECT_LE(off, 1e-4 * most + 1e-6) << name << ", gradient " << i;
    }
  }
};

TEST_F(ModelsOnFakeCuda, TransformerLm) {
  for (const int64_t batch : {1, 4}) {
    expect_as_on_cpu("TransformerLm, batch " + std::to_string(batch), [batch] {
      LmConfig config;
      config.vocab_size = 50;
      config.hidden_size = 32;
      config.intermediate_size = 44;
      config.num_hidden_layers = 2;
      config.num_attention_heads = 4;
      config.max_position_embeddings = 64;
      TransformerLm model(config);
      const auto loss_on = [batch](at::Device device) {
        const at::Tensor ids = torch::arange(batch * 9).mul(7).remainder(50).view({batch, 9});
        const at::Tensor inputs = ids.narrow(1, 0, 8).to(device);
        const at::Tensor targets = ids.narrow(1, 1, 8).to(device);
        return [=](TransformerLm& lm) { return lm->loss(inputs, targets); };
      };
      return std::pair(model, loss_on);
    });
  }
}

// By a divided vocabulary's way, of a part that has all of it: what a chunk takes changes nothing.
TEST_F(ModelsOnFakeCuda, ADividedVocabularysLoss) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const auto loss_on = [type](at::Device device, bool divided, int64_t chunk) {
      const at::Tensor rows = torch::arange(7 * 6).mul(1.7).sin().view({7, 6}).to(device, type);
      const at::Tensor weight = torch::arange(11 * 6).mul(2.3).cos().view({11, 6}).to(device, type);
      const at::Tensor targets = torch::tensor({3, -100, 10, 0, 7, -100, 5}).to(device);
      VocabularyLossOptions options{.rows_at_a_time = chunk};
      if (divided) options.part = {.first = 0, .all = 11, .combine = [](const at::Tensor&) {}};
      rows.requires_grad_(), weight.requires_grad_();
      Counting counted;
      const at::Tensor loss = vocabulary_loss(rows, weight, targets, options);
      loss.mul(3).backward();
      EXPECT_TRUE(device.is_cpu() || counted.stops() == 0) << counted.counts().text();
      const TokenScores scores = vocabulary_scores(rows, weight, targets, options);
      return std::vector<at::Tensor>{loss.detach().cpu(), rows.grad().cpu(), weight.grad().cpu(),
                                     scores.losses.cpu(), scores.likeliest.to(at::kDouble).cpu()};
    };
    const auto host = loss_on(at::kCPU, false, 0);
    for (const int64_t chunk : {0, 3}) {
      const auto device = loss_on(at::Device(at::kCUDA, 0), true, chunk);
      for (size_t i = 0; i < host.size(); ++i)
        EXPECT_TRUE(device[i].allclose(host[i], 1e-5, 1e-6)) << i << ", " << chunk;
    }
  }
}

// Masks are a hash of row and column, so that the device drops what the CPU drops.
TEST_F(ModelsOnFakeCuda, TransformerLmDropsWhatTheCpuDrops) {
  for (const bool packed : {false, true}) {
    expect_as_on_cpu("TransformerLm with dropout", [packed] {
      LmConfig config;
      config.vocab_size = 50;
      config.hidden_size = 32;
      config.intermediate_size = 44;
      config.num_hidden_layers = 2;
      config.num_attention_heads = 4;
      config.num_key_value_heads = 2;
      config.max_position_embeddings = 64;
      config.attention_dropout = 0.2;
      config.hidden_dropout = 0.1;
      TransformerLm model(config);
      const auto loss_on = [packed](at::Device device) {
        const at::Tensor ids = torch::arange(3 * 9).mul(7).remainder(50).view({3, 9});
        const auto shaped = [&](int64_t first) {
          const at::Tensor part = ids.narrow(1, first, 8);
          return (packed ? part.flatten() : part.contiguous()).to(device);
        };
        const at::Tensor inputs = shaped(0), targets = shaped(1);
        const at::Tensor lengths = packed ? torch::tensor({5, 8, 8, 3}) : at::Tensor();
        return [=](TransformerLm& lm) { return lm->loss(inputs, targets, lengths); };
      };
      return std::pair(model, loss_on);
    });
  }
}

TEST_F(ModelsOnFakeCuda, BertClassifierWithMasksAndPacked) {
  enum class Form { kMask, kHoles, kHostMask, kPacked };
  for (const Form form : {Form::kMask, Form::kHoles, Form::kHostMask, Form::kPacked}) {
    expect_as_on_cpu("BertClassifier, form " + std::to_string(static_cast<int>(form)), [form] {
      BertConfig config;
      config.vocab_size = 50;
      config.hidden_size = 32;
      config.num_hidden_layers = 2;
      config.num_attention_heads = 4;
      config.intermediate_size = 64;
      config.max_position_embeddings = 16;
      config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
      BertClassifier model(config);
      const auto loss_on = [form](at::Device device) {
        const at::Tensor all = torch::arange(3 * 8).mul(7).remainder(49).add(1).view({3, 8});
        const at::Tensor labels = torch::arange(3).remainder(2).to(device);
        const at::Tensor lengths = torch::tensor({8, 5, 6});
        at::Tensor mask = torch::arange(8).lt(lengths.unsqueeze(1)).to(torch::kLong);
        if (form == Form::kHoles) mask.select(1, 2).zero_();
        if (form == Form::kPacked) {
          const at::Tensor ids = all.flatten().narrow(0, 0, 19).to(device);
          return std::function<at::Tensor(BertClassifier&)>([=](BertClassifier& bert) {
            return torch::nn::functional::cross_entropy(bert->forward(ids, {}, {}, lengths),
                                                        labels);
          });
        }
        if (form != Form::kHostMask) mask = mask.to(device);
        const at::Tensor ids = all.to(device);
        return std::function<at::Tensor(BertClassifier&)>([=](BertClassifier& bert) {
          return torch::nn::functional::cross_entropy(bert->forward(ids, mask), labels);
        });
      };
      return std::pair(model, loss_on);
    });
  }
}

TEST_F(ModelsOnFakeCuda, BertClassifier) {
  for (const int64_t batch : {1, 4}) {
    expect_as_on_cpu("BertClassifier, batch " + std::to_string(batch), [batch] {
      BertConfig config;
      config.vocab_size = 50;
      config.hidden_size = 32;
      config.num_hidden_layers = 2;
      config.num_attention_heads = 4;
      config.intermediate_size = 64;
      config.max_position_embeddings = 16;
      config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
      BertClassifier model(config);
      const auto loss_on = [batch](at::Device device) {
        const at::Tensor ids =
            torch::arange(batch * 8).mul(7).remainder(49).add(1).view({batch, 8}).to(device);
        const at::Tensor labels = torch::arange(batch).remainder(2).to(device);
        return [=](BertClassifier& bert) {
          return torch::nn::functional::cross_entropy(bert->forward(ids), labels);
        };
      };
      return std::pair(model, loss_on);
    });
  }
}

TEST_F(ModelsOnFakeCuda, ResNet) {
  expect_as_on_cpu("ResNet-18", [] {
    ResNet model(ResNetOptions{.stem = ResNetStem::kCifar, .num_classes = 10});
    const auto loss_on = [](at::Device device) {
      const at::Tensor images =
          torch::arange(2 * 3 * 32 * 32).mul(7).remainder(255).div(255).view({2, 3, 32, 32});
      const at::Tensor inputs = images.to(device);
      const at::Tensor labels = torch::tensor({3, 8}).to(device);
      return [=](ResNet& net) {
        return torch::nn::functional::cross_entropy(net->forward(inputs), labels);
      };
    };
    return std::pair(model, loss_on);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::testing
