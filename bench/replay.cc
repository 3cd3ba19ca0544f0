// Runs an executable on the CPU device with no runtime around it: the actions of all workers one after the other on one
// thread, alone on the machine. For bench/limit.py, which sets a real step beside it.
//   abele-replay FILE.abt THREADS STEPS REPEATS INPUT...    FILE: Session::executableText(); INPUT: the bytes of each
//   input; REPEATS: each instruction runs so many times in a row. From 2 on its operands are in the caches.
// Writes JSON: what each instruction took at least, summed over the actions of a step.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <tuple>

#include <ATen/ATen.h>

#include "base/cat.h"
#include "device/cpu/cpu_backend.h"

namespace {

using namespace abele;
using Clock = std::chrono::steady_clock;

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(cat("cannot read ", path));
  return {std::istreambuf_iterator<char>(in), {}};
}

// Times instructions: each tells when it is done.
class Stopwatch final : public abele::device::Watch {
 public:
  using Place = std::tuple<int32_t, int32_t, int32_t>;  // segment, micro-batch, instruction
  void start() { last_ = Clock::now(); }
  void computed(const runtime::ActionContext& action, int32_t instruction, int32_t, const at::Tensor&) override {
    const Clock::time_point now = Clock::now();
    const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count();
    const Place place{action.segment, action.micro_batch, instruction};
    // An instruction with several results is waited for at its first one.
    if (place != place_) now_[place] += ns;
    place_ = place;
    last_ = Clock::now();
  }
  /// counts: false for steps in which kernels still learn.
  /// originals: by segment, whose copy an instruction is; of all copies the fastest counts.
  void endStep(bool counts, const std::vector<std::vector<int32_t>>& originals) {
    if (!counts) now_.clear();
    for (const auto& [place, ns] : now_) {
      const auto [segment, micro_batch, instruction] = place;
      const int32_t original = originals[static_cast<size_t>(segment)][static_cast<size_t>(instruction)];
      const auto [found, is_new] = least_.emplace(Place{segment, micro_batch, original}, ns);
      if (!is_new) found->second = std::min(found->second, ns);
    }
    now_.clear();
    place_ = {-1, -1, -1};
  }
  const std::map<Place, int64_t>& least() const { return least_; }

 private:
  Clock::time_point last_;
  Place place_{-1, -1, -1};
  std::map<Place, int64_t> now_, least_;
};

// All actions in an order that the waits allow.
std::vector<std::pair<int32_t, const exe::Action*>> inOrder(const exe::Executable& executable) {
  std::vector<std::pair<int32_t, const exe::Action*>> order;
  std::vector<size_t> next(executable.workers.size(), 0);
  std::vector<int64_t> done(executable.segments.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t w = 0; w < executable.workers.size(); ++w) {
      const auto& actions = executable.workers[w].actions;
      const auto may = [&](const exe::Action& action) {
        return std::all_of(action.waits.begin(), action.waits.end(), [&](const exe::Wait& wait) {
          return done[static_cast<size_t>(wait.segment)] >= wait.completions;
        });
      };
      for (; next[w] < actions.size() && may(actions[next[w]]); ++next[w], moved = true) {
        order.emplace_back(static_cast<int32_t>(w), &actions[next[w]]);
        ++done[static_cast<size_t>(actions[next[w]].segment)];
      }
    }
  }
  return order;
}

using Originals = std::vector<std::vector<int32_t>>;

// Repeats each instruction. The results differ from those of the step, since sums are added to and values are
// overwritten several times. Returns: by segment, whose copy an instruction is.
Originals repeat(exe::Executable& executable, int32_t repeats) {
  Originals originals;
  for (exe::Segment& segment : executable.segments) {
    std::vector<exe::Instruction> all;
    std::vector<int32_t>& original = originals.emplace_back();
    const auto count = static_cast<int32_t>(segment.instructions.size());
    for (int32_t i = 0; i < count; ++i)
      for (int32_t copy = 0; copy < repeats; ++copy) {
        all.push_back(segment.instructions[static_cast<size_t>(i)]);
        original.push_back(i);
      }
    segment.instructions = std::move(all);
  }
  return originals;
}

// Uploads weights that are not zeros, and the numbers that updates need.
void prepare(const exe::Executable& executable, abele::device::CpuBackend& backend) {
  for (size_t e = 0; e < executable.externals.size(); ++e) {
    const exe::External& external = executable.externals[e];
    if (external.slot < 0 || external.kind == exe::ExternalKind::kAccumulator ||
        external.kind == exe::ExternalKind::kState)
      continue;
    const Type& type = executable.slots[static_cast<size_t>(external.slot)].type;
    const auto dtype = static_cast<at::ScalarType>(type.dtype);
    at::Tensor value = at::empty_strided(type.sizes, type.strides, dtype);
    if (at::isFloatingType(dtype))
      value.uniform_(0.01, 0.05);
    else
      value.zero_();
    backend.upload(static_cast<int32_t>(e), value);
  }
  for (int group = 0; group < 16; ++group)
    for (const auto& [name, number] : std::map<std::string, double>{
             {"lr", 1e-6}, {"momentum", 0.9}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}})
      backend.setHyper(group, name, number);
}

void write(const exe::Executable& executable, const std::vector<int64_t>& steps_ns, const Stopwatch& watch) {
  struct Sum {
    int64_t calls = 0, ns = 0;
  };
  std::map<std::string, Sum> by_op;
  std::vector<int64_t> by_worker(executable.workers.size(), 0);
  std::vector<int32_t> worker_of(executable.segments.size(), 0);
  for (size_t w = 0; w < executable.workers.size(); ++w)
    for (const exe::Action& action : executable.workers[w].actions)
      worker_of[static_cast<size_t>(action.segment)] = static_cast<int32_t>(w);
  for (const auto& [place, ns] : watch.least()) {
    const auto [segment, micro_batch, instruction] = place;
    const exe::Segment& in = executable.segments[static_cast<size_t>(segment)];
    Sum& sum = by_op[cat(exe::directionName(in.direction), " ", in.instructions[static_cast<size_t>(instruction)].op)];
    ++sum.calls;
    sum.ns += ns;
    by_worker[static_cast<size_t>(worker_of[static_cast<size_t>(segment)])] += ns;
  }
  std::cout << "{\"least_step_ns\": " << *std::min_element(steps_ns.begin(), steps_ns.end()) << ", \"worker_ns\": [";
  for (size_t w = 0; w < by_worker.size(); ++w) std::cout << (w ? ", " : "") << by_worker[w];
  std::cout << "], \"operators\": {";
  bool first = true;
  for (const auto& [op, sum] : by_op) {
    std::cout << (first ? "" : ", ") << '"' << op << "\": {\"calls\": " << sum.calls << ", \"ns\": " << sum.ns << "}";
    first = false;
  }
  std::cout << "}}\n";
}

int replay(const std::vector<std::string>& arguments) {
  const exe::Executable executable = exe::parse(read(arguments.at(0)));
  const int threads = std::stoi(arguments.at(1)), steps = std::stoi(arguments.at(2));
  const int32_t repeats = std::stoi(arguments.at(3));
  if (executable.stage_processes > 1 || executable.processes > 1)
    throw std::runtime_error("only programs of one process are replayed");
  std::vector<std::string> bytes;
  std::vector<at::Tensor> inputs;
  for (int64_t i = 0; i < executable.numInputs(); ++i) {
    const int32_t slot = executable.input_slots[static_cast<size_t>(i)];
    bytes.push_back(slot < 0 ? std::string() : read(arguments.at(4 + static_cast<size_t>(i))));
    if (slot < 0) {
      inputs.emplace_back();
      continue;
    }
    const Type& type = executable.slots[static_cast<size_t>(slot)].type;
    std::vector<int64_t> sizes = type.sizes;
    const int64_t parts = executable.micro_batches * executable.inputParts();
    if (parts > 1) sizes.at(0) *= parts;
    inputs.push_back(at::from_blob(bytes.back().data(), sizes, static_cast<at::ScalarType>(type.dtype)).clone());
  }

  Stopwatch watch;
  exe::Executable running = executable;
  const Originals originals = repeat(running, repeats);
  const auto backend = abele::device::CpuBackend::create(running, {.threads_per_device = threads, .watch = &watch});
  prepare(executable, *backend);
  std::vector<std::unique_ptr<runtime::Device>> devices;
  for (size_t w = 0; w < executable.workers.size(); ++w)
    devices.push_back(backend->makeDevice(static_cast<int32_t>(w)));
  devices[0]->attach();
  const auto order = inOrder(executable);
  std::vector<int64_t> steps_ns;
  for (int step = 0; step < steps; ++step) {
    backend->bindInputs(inputs);
    backend->bindOutputs(std::vector<std::vector<at::Tensor>>(executable.output_slots.size()));
    backend->begin(step);
    const Clock::time_point begin = Clock::now();
    for (const auto& [worker, action] : order) {
      watch.start();
      devices[static_cast<size_t>(worker)]->run({worker, action->segment, action->micro_batch,
                                                 static_cast<int32_t>(action->micro_batch % executable.accumulation),
                                                 step});
    }
    steps_ns.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
    backend->finish(true);
    watch.endStep(/*counts=*/step > 1 || step + 1 == steps, originals);  // kernels learn and try in their first runs
  }
  write(executable, steps_ns, watch);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return replay({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "abele-replay: " << error.what() << "\n";
    return 1;
  }
}
