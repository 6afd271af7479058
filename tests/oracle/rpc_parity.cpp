// What rpc_parity.py runs: rpc_parity FOLDER PROCESSES OPTIMIZER trains the model in FOLDER cut among so many agents (of this
// process; they share nothing but their calls), and in one piece, and leaves what came of both there.
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/rpc/optimizer.h>
#include <lockstep/store/hash_store.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <filesystem>
#include <map>

namespace {

using namespace lockstep;

constexpr int kSteps = 5;

struct Part {
  Part(const at::Tensor& weight, const at::Tensor& bias) : layer(weight.size(1), weight.size(0)) {
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(weight);
    layer->bias.copy_(bias);
  }
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x).tanh(); }
  torch::nn::Linear layer;
};

using Tensors = std::vector<at::Tensor>;

rpc::Registry functions() {
  rpc::Registry registry;
  registry.add("part", [](const at::Tensor& weight, const at::Tensor& bias) {
    return std::make_shared<Part>(weight, bias);
  });
  registry.add("forward", &Part::forward);
  registry.add("parameters", [](Part& part) {
    std::vector<rpc::RRef<at::Tensor>> all;
    for (const auto& one : part.layer->parameters())
      all.push_back(rpc::Agent::current().own(std::make_shared<at::Tensor>(one)));
    return all;
  });
  registry.add("trained", [](Part& part) {
    return Tensors{part.layer->weight.detach(), part.layer->bias.detach()};
  });
  registry.add("gradients", [](Part& part) {
    std::map<const void*, at::Tensor> found;
    for (const auto& [parameter, gradient] : rpc::context_gradients())
      found[parameter.unsafeGetTensorImpl()] = gradient;
    return Tensors{found.at(part.layer->weight.unsafeGetTensorImpl()),
                   found.at(part.layer->bias.unsafeGetTensorImpl())};
  });
  rpc::add_optimizers(registry);
  return registry;
}

void put(NamedTensors& results, const std::string& prefix, int part, const Tensors& both) {
  results.emplace_back(prefix + "weight" + std::to_string(part), both[0].clone());
  results.emplace_back(prefix + "bias" + std::to_string(part), both[1].clone());
}

// A tensor of its own, not a view into the file or into all batches: on AMD's processors MKL's products depend on where their
// operands lie, and an agent gets its tensors at the allocator's alignment.
at::Tensor batch(const std::map<std::string, at::Tensor>& input, int step) {
  return input.at("inputs")[step].clone();
}

NamedTensors over_agents(const std::map<std::string, at::Tensor>& input, int processes,
                         const std::string& name) {
  const auto store = std::make_shared<HashStore>();
  std::vector<rpc::Agent> agents;
  const Secret secret = Secret::generate();
  for (int i = 0; i < processes; ++i)
    agents.push_back(
        rpc::init("worker" + std::to_string(i), store, functions(), {.secret = secret}));
  const rpc::Agent& agent = agents[0];
  const auto local = std::make_shared<Part>(input.at("weight1"), input.at("bias1"));
  std::vector<rpc::RRef<Part>> parts{
      agent.remote<Part>("worker1", "part", input.at("weight0"), input.at("bias0")),
      agent.own(local),
      agent.remote<Part>("worker" + std::to_string(processes - 1), "part", input.at("weight2"),
                         input.at("bias2"))};
  std::vector<rpc::RRef<at::Tensor>> references;
  for (const auto& part : parts)
    for (const auto& one : part.rpc_sync<std::vector<rpc::RRef<at::Tensor>>>("parameters"))
      references.push_back(one);
  rpc::OptimizerRecipe recipe{.name = name, .options = {{"lr", 0.05}}};
  if (name == "sgd") recipe.options["momentum"] = 0.9;
  rpc::DistributedOptimizer optimizer(agent, references, recipe);
  NamedTensors results;
  for (int step = 0; step < kSteps; ++step) {
    rpc::AutogradContext context(agent);
    const at::Tensor h =
        local->forward(parts[0].rpc_sync<at::Tensor>("forward", batch(input, step)));
    const at::Tensor loss = parts[2].rpc_sync<at::Tensor>("forward", h).pow(2).sum();
    context.backward({loss});
    for (int i = 0; step == 0 && i < 3; ++i)
      put(results, "gradient.", i, parts[i].rpc_sync<Tensors>("gradients"));
    optimizer.step(context);
    results.emplace_back("loss" + std::to_string(step), loss.detach().reshape({1}));
  }
  for (int i = 0; i < 3; ++i) put(results, "", i, parts[i].rpc_sync<Tensors>("trained"));
  return results;
}

NamedTensors alone(const std::map<std::string, at::Tensor>& input, const std::string& name) {
  std::vector<Part> parts;
  Tensors parameters;
  for (int i = 0; i < 3; ++i) {
    parts.emplace_back(input.at("weight" + std::to_string(i)),
                       input.at("bias" + std::to_string(i)));
    for (const auto& one : parts.back().layer->parameters()) parameters.push_back(one);
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (name == "sgd")
    optimizer = std::make_unique<torch::optim::SGD>(parameters,
                                                    torch::optim::SGDOptions(0.05).momentum(0.9));
  else
    optimizer = std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.05));
  NamedTensors results;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    at::Tensor h = batch(input, step);
    for (Part& part : parts) h = part.forward(h);
    const at::Tensor loss = h.pow(2).sum();
    loss.backward();
    for (int i = 0; step == 0 && i < 3; ++i)
      put(results, "gradient.", i,
          {parts[static_cast<size_t>(i)].layer->weight.grad(),
           parts[static_cast<size_t>(i)].layer->bias.grad()});
    optimizer->step();
    results.emplace_back("loss" + std::to_string(step), loss.detach().reshape({1}));
  }
  for (int i = 0; i < 3; ++i)
    put(results, "", i,
        {parts[static_cast<size_t>(i)].layer->weight.detach(),
         parts[static_cast<size_t>(i)].layer->bias.detach()});
  return results;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: rpc_parity FOLDER PROCESSES OPTIMIZER\n", stderr);
    return 2;
  }
  try {
    at::set_num_threads(1);
    const std::filesystem::path folder = argv[1];
    const std::string run = std::string(argv[2]) + "-" + argv[3] + ".safetensors";
    std::map<std::string, at::Tensor> input;
    for (const auto& [name, tensor] : read_safetensors(folder / "case.safetensors").tensors)
      input[name] = tensor;
    write_safetensors(folder / ("ours-" + run), over_agents(input, std::stoi(argv[2]), argv[3]));
    write_safetensors(folder / ("alone-" + run), alone(input, argv[3]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rpc_parity: %s\n", error.what());
    return 1;
  }
}
