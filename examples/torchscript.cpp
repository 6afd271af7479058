// Trains a TorchScript model that Python wrote: the program has none of the model's source, and
// Python can load what it saves. Without a file it makes a small model itself. The model takes rows
// of two numbers and gives one, here their product. Runs on 2 ranks of its own when started by hand.
//
//   model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
//   torch.jit.script(model).save("model.pt")
#include <lockstep/parallel/ddp/ddp.h>
#include <torch/optim/adam.h>
#include <torch/script.h>
#include <torch/utils.h>

#include <cstdio>
#include <string>
#include <vector>

#include "on_ranks.h"
#include "usage.h"

namespace {

torch::jit::Module small_model() {
  torch::manual_seed(1);
  torch::jit::Module model("Product");
  const auto learn = [&](const char* name, const torch::Tensor& value) {
    model.register_parameter(name, value.requires_grad_(), /*is_buffer=*/false);
  };
  learn("w1", torch::randn({2, 32}));
  learn("b1", torch::zeros({32}));
  learn("w2", torch::randn({32, 1}) / 6);
  model.define(R"(
def forward(self, x):
    return torch.tanh(x.matmul(self.w1) + self.b1).matmul(self.w2)
)");
  return model;
}

void train(lockstep::Communicator& comm, const std::string& from, const std::string& to) {
  torch::jit::Module net = from.empty() ? small_model() : torch::jit::load(from, comm.device());
  net.to(comm.device());
  net.train();
  lockstep::DistributedDataParallel model(net, comm);

  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : net.parameters()) parameters.push_back(parameter);
  torch::optim::Adam optimizer(parameters, torch::optim::AdamOptions(0.01));
  torch::manual_seed(comm.rank());  // other samples on every rank
  constexpr int kSteps = 300;
  for (int step = 0; step <= kSteps; ++step) {
    const auto x = torch::rand({64, 2}).mul(2).sub(1).to(comm.device());
    const auto product = x.prod(1, /*keepdim=*/true);
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(model(x).toTensor(), product);
    loss.backward();  // averages the gradients
    optimizer.step();
    if (step % kSteps != 0) continue;
    torch::Tensor mean = loss.detach().clone();
    comm.all_reduce(mean, lockstep::ReduceOp::kAvg);
    if (comm.rank() == 0) std::printf("step %d: loss %.3f\n", step, mean.item<double>());
  }
  if (comm.rank() == 0 && !to.empty()) {
    net.eval();
    net.save(to);
    std::printf("saved as %s\n", to.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = usage_asked(argc, argv, "torchscript [MODEL.pt [TRAINED.pt]]"))
    return *code;
  const std::string from = argc > 1 ? argv[1] : "", to = argc > 2 ? argv[2] : "";
  return on_ranks(2, [&](lockstep::Communicator& comm) { train(comm, from, to); });
}
