// poprun: starts the processes of a program and ends with their exit code.
//
//   poprun --num-instances=2 --num-replicas=4 python train.py
//   poprun --num-instances=2 --num-replicas=1 --ipus-per-replica=4 build/train
//
// The processes find each other through torch.distributed's store. This process holds the store on a free port, for
// this host only. The processes see the variables of torchrun, of Open MPI and of PopDist. If one fails, the others are
// ended. If this process is killed, all are ended. Docs: docs/replicas.md.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace {

constexpr const char* kAddress = "127.0.0.1";
constexpr int kPatienceS = 10;  // time between SIGTERM and SIGKILL
constexpr int kWrongArguments = 2, kNoProgram = 127;
using Variables = std::map<std::string, std::string>;

struct Arguments {
  int instances = 1, devices = 1, verbose = 0;
  std::optional<int> replicas, only_output_from;
  std::string cache_path, local_arguments, global_arguments, hosts;
  std::vector<std::string> exports, program;
  Variables variables;  // variables to export
};

struct WrongArguments : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw WrongArguments(text.str());
}

void say(const std::string& text) { std::cerr << "poprun: " << text << std::endl; }

// Splits a text into words as a shell does: quoted and escaped blanks belong to the word.
std::vector<std::string> wordsOf(const std::string& text) {
  std::vector<std::string> words;
  bool is_open = false;  // inside a word
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == '\0' && std::isspace(static_cast<unsigned char>(c))) {
      is_open = false;
      continue;
    }
    if (!is_open) words.emplace_back();
    is_open = true;
    if (c == quote)
      quote = '\0';
    else if (quote == '\0' && (c == '\'' || c == '"'))
      quote = c;
    else if (c == '\\' && quote != '\'' && i + 1 < text.size())
      words.back() += text[++i];
    else
      words.back() += c;
  }
  if (quote != '\0') refuse("no closing quote in ", text);
  return words;
}

std::string quoted(const std::string& word) {
  const auto isPlain = [](unsigned char c) { return std::isalnum(c) || std::strchr("@%+=:,./_-", c) != nullptr; };
  if (!word.empty() && std::all_of(word.begin(), word.end(), isPlain)) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\"'\"'") : std::string(1, c);
  return text + "'";
}

// The variables of -x, in the command's own arguments and in the arguments for MPI.
Variables exportsOf(const Arguments& arguments) {
  std::vector<std::string> texts = arguments.exports;
  for (const std::string& text : {arguments.local_arguments, arguments.global_arguments}) {
    const std::vector<std::string> words = wordsOf(text);
    for (size_t i = 0; i + 1 < words.size(); ++i)
      if (words[i] == "-x") texts.push_back(words[i + 1]);
  }
  Variables variables;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (name.empty()) refuse("-x '", text, "': expected NAME=VALUE");
    if (equals != std::string::npos)
      variables[name] = text.substr(equals + 1);
    else if (const char* own = std::getenv(name.c_str()))
      variables[name] = own;
  }
  return variables;
}

// Number of instances that a replica spans. Together they hold the smallest whole number of replicas.
int instancesOfReplica(const Arguments& a) { return a.instances / std::gcd(a.instances, *a.replicas); }

void require(const Arguments& a) {
  if (a.program.empty()) refuse("no program: poprun [options] python train.py");
  if (a.program[0].starts_with('-')) refuse("unrecognized argument: ", a.program[0]);
  if (a.instances < 1 || *a.replicas < 1 || a.devices < 1)
    refuse("--num-instances, --num-replicas and --ipus-per-replica are 1 or more");
  if (a.devices % instancesOfReplica(a) != 0) {
    if (*a.replicas >= a.instances) refuse(*a.replicas, " replicas cannot be shared by ", a.instances, " instances");
    refuse(a.devices * *a.replicas, " devices cannot be shared by ", a.instances, " instances");
  }
  for (const std::string& host : CLI::detail::split(a.hosts, ','))
    if (!host.empty() && host != "localhost" && host != kAddress)
      refuse("--host: only this host; start one torchrun on each of several");
}

void declare(CLI::App& app, Arguments& a, std::vector<std::string>& ignored, bool& ignores) {
  app.prefix_command();
  app.add_option("--num-instances,-n", a.instances, "processes");
  app.add_option("--num-replicas", a.replicas, "replicas of all processes; default: one each");
  app.add_option("--ipus-per-replica", a.devices, "devices of a replica");
  app.add_option("--executable-cache-path", a.cache_path, "folder of compiled programs, shared by the processes");
  app.add_option("--mpi-local-args", a.local_arguments,
                 "as in Open MPI; \"-x NAME=VALUE\" sets a variable, others have no effect");
  app.add_option("--mpi-global-args", a.global_arguments, "the same");
  app.add_option("-x", a.exports, "NAME or NAME=VALUE: a variable of the processes")->allow_extra_args(false);
  app.add_option("--host,--hosts,-H", a.hosts, "hosts; only this one is possible");
  app.add_option("--only-output-from-instance", a.only_output_from, "the others' output is dropped");
  app.add_flag("-v,--verbose", a.verbose, "says what is started; twice: its variables");
  app.add_flag("--tag-output", ignores, "no effect");
  const auto ignore = [&](const std::string& name) {
    return app.add_option(name, ignored, "no effect: there is no partition")->allow_extra_args(false);
  };
  const CLI::IsMember is_answer({"yes", "no", "on", "off"});
  ignore("--offline-mode")->check(is_answer)->expected(1);
  for (const char* name :
       {"--vipu-partition", "--vipu-server-host", "--vipu-server-timeout", "--numa-aware", "--host-subnet"})
    ignore(name)->expected(1);
  for (const char* name : {"--update-partition", "--reset-partition", "--remove-partition", "--print-topology"})
    ignore(name)->check(is_answer)->expected(0, 1);
}

Variables ownVariables() {
  Variables variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string text = *each;
    if (const size_t equals = text.find('='); equals != std::string::npos)
      variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

// The environment variables of process `index`.
Variables variablesOf(int index, const Arguments& a, uint16_t port) {
  Variables all = ownVariables();
  for (const auto& [name, value] : a.variables) all[name] = value;
  all.emplace("GLOO_SOCKET_IFNAME", "lo");  // keeps the transfers on this host too
  all["MASTER_ADDR"] = kAddress;
  all["MASTER_PORT"] = std::to_string(port);
  all["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // the store exists already
  all["POPDIST_NUM_TOTAL_REPLICAS"] = std::to_string(*a.replicas);
  const int share = *a.replicas / std::gcd(a.instances, *a.replicas);
  all["POPDIST_NUM_LOCAL_REPLICAS"] = std::to_string(share);
  all["POPDIST_REPLICA_INDEX_OFFSET"] = std::to_string(index / instancesOfReplica(a) * share);
  all["POPDIST_NUM_IPUS_PER_REPLICA"] = std::to_string(a.devices);
  for (const char* name : {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"})
    all[name] = std::to_string(index);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"})
    all[name] = std::to_string(a.instances);
  if (!a.cache_path.empty()) all["POPTORCH_CACHE_DIR"] = a.cache_path;
  return all;
}

int requireSystem(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

// Where the store cannot open a file, c10d tries until its timeout, and the processes wait for it. The store needs
// fewer files than the process of index 0, which takes the number as its own condition (src/collective/gloo.cc).
void requireFiles(int instances) {
  const size_t wanted = 16 + 4 * static_cast<size_t>(instances);
  std::vector<int> opened;
  for (int file = 0; opened.size() < wanted && (file = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;)
    opened.push_back(file);
  for (const int file : opened) ::close(file);
  if (opened.size() < wanted)
    throw std::runtime_error("too few files for " + std::to_string(instances) + " instances: the limit allows " +
                             std::to_string(opened.size()) + " more, " + std::to_string(wanted) +
                             " are needed; raise it: ulimit -n 1024");
}

// The store of the processes. All are on this host, so other hosts cannot connect.
c10::intrusive_ptr<c10d::TCPStore> openStore() {
  const int listener = requireSystem(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  requireSystem(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), "bind");
  requireSystem(::listen(listener, SOMAXCONN), "listen");
  socklen_t size = sizeof address;
  requireSystem(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  c10d::TCPStoreOptions options;
  options.port = ntohs(address.sin_port);
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = std::chrono::minutes(30);
  options.masterListenFd = listener;
  return c10::make_intrusive<c10d::TCPStore>(kAddress, options);
}

std::vector<char*> pointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The running processes. Signals reach this program only in wait(), so an id in the list always belongs to a process of
// this program.
class Processes {
 public:
  Processes() {
    sigemptyset(&signals_);
    for (const int each : {SIGTERM, SIGINT, SIGCHLD}) {
      sigaddset(&signals_, each);
      ::signal(each, SIG_DFL);  // in case this program was started with ignored signals
    }
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);  // later threads inherit the mask
  }

  /// Returns errno of the failure, or 0.
  int start(int index, std::vector<std::string> program, const Variables& variables, bool is_silent) {
    std::vector<std::string> assignments;
    for (const auto& [name, value] : variables) assignments.push_back(name + "=" + value);
    const std::vector<char*> words = pointersTo(program), environment = pointersTo(assignments);
    int failure[2];
    requireSystem(::pipe2(failure, O_CLOEXEC), "pipe");
    const pid_t parent = ::getpid();
    const pid_t pid = requireSystem(::fork(), "fork");
    if (pid == 0) {  // no allocation from here on, because another thread may have held the heap's lock
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::raise(SIGKILL);  // the parent ended before the request above
      if (is_silent) {
        const int nowhere = ::open("/dev/null", O_WRONLY);
        ::dup2(nowhere, STDOUT_FILENO);
        ::dup2(nowhere, STDERR_FILENO);
      }
      ::close_range(STDERR_FILENO + 1, UINT_MAX, CLOSE_RANGE_CLOEXEC);
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
      environ = const_cast<char**>(environment.data());
      ::execvp(words[0], words.data());
      const int error = errno;
      [[maybe_unused]] const ssize_t written = ::write(failure[1], &error, sizeof error);
      ::_exit(kNoProgram);
    }
    ::close(failure[1]);
    int error = 0;
    while (::read(failure[0], &error, sizeof error) < 0 && errno == EINTR) {
    }
    ::close(failure[0]);
    if (error == 0)
      running_[pid] = index;
    else
      ::waitpid(pid, nullptr, 0);
    return error;
  }

  void endAll(int signal) {
    for (const auto& [pid, index] : running_) ::kill(pid, signal);
  }

  /// Returns the exit code of the first process that failed, or 0.
  int waitForAll() {
    std::chrono::steady_clock::time_point last = kNever;  // when processes that were told to end are killed
    while (!running_.empty()) {
      siginfo_t info{};
      const int received = waitForSignal(last, info);
      if (received == SIGTERM || received == SIGINT) endAll(received);
      if (received < 0 && errno == EAGAIN) {
        endAll(SIGKILL);
        last = kNever;
      }
      if (takeEnded() && last == kNever) last = std::chrono::steady_clock::now() + std::chrono::seconds(kPatienceS);
    }
    return code_;
  }

 private:
  static constexpr auto kNever = std::chrono::steady_clock::time_point::max();

  int waitForSignal(std::chrono::steady_clock::time_point last, siginfo_t& info) const {
    if (last == kNever) return ::sigwaitinfo(&signals_, &info);
    const auto left = std::max<int64_t>(
        0, std::chrono::duration_cast<std::chrono::nanoseconds>(last - std::chrono::steady_clock::now()).count());
    const timespec time{left / 1'000'000'000, left % 1'000'000'000};
    return ::sigtimedwait(&signals_, &info, &time);
  }

  /// Removes all processes that have ended. Returns: true if one of them is the first that failed.
  bool takeEnded() {
    bool is_first = false;
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto own = running_.find(pid);
      if (own == running_.end()) continue;
      const int index = own->second;
      running_.erase(own);
      const int failed = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);  // as shells report it
      if (failed == 0 || code_ != 0) continue;
      code_ = failed;
      is_first = true;
      if (running_.empty()) continue;
      say("instance " + std::to_string(index) + " ended with " + std::to_string(failed) + ": the others are ended");
      endAll(SIGTERM);
    }
    return is_first;
  }

  sigset_t signals_, before_;
  std::map<pid_t, int> running_;  // index of the process, by id
  int code_ = 0;
};

void tell(int index, const Arguments& a, const Variables& variables) {
  std::string text = "instance " + std::to_string(index) + " of " + std::to_string(a.instances) + ":";
  for (const std::string& word : a.program) text += " " + quoted(word);
  say(text);
  if (a.verbose < 2) return;
  const Variables own = ownVariables();
  std::string changed;
  for (const auto& [name, value] : variables)
    if (const auto found = own.find(name); found == own.end() || found->second != value)
      changed += (changed.empty() ? "" : " ") + name + "=" + quoted(value);
  say(changed);
}

int run(const Arguments& a) {
  requireFiles(a.instances);
  Processes processes;
  const c10::intrusive_ptr<c10d::TCPStore> store = openStore();
  for (int index = 0; index < a.instances; ++index) {
    const Variables variables = variablesOf(index, a, store->getPort());
    if (a.verbose > 0) tell(index, a, variables);
    const bool is_silent = a.only_output_from && *a.only_output_from != index;
    if (const int error = processes.start(index, a.program, variables, is_silent); error != 0) {
      say("cannot start " + a.program[0] + ": " + std::strerror(error));
      processes.endAll(SIGTERM);
      processes.waitForAll();
      return kNoProgram;
    }
  }
  return processes.waitForAll();
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  std::vector<std::string> ignored;
  bool ignores = false;
  CLI::App app("Starts the processes of a program and ends with their exit code.", "poprun");
  declare(app, arguments, ignored, ignores);
  try {
    app.parse(argc, argv);
    arguments.program = app.remaining();
    if (!arguments.program.empty() && arguments.program[0] == "--") arguments.program.erase(arguments.program.begin());
    if (!arguments.replicas) arguments.replicas = arguments.instances;
    require(arguments);
    arguments.variables = exportsOf(arguments);
    return run(arguments);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    say(error.what());
  } catch (const WrongArguments& error) {
    say(error.what());
  } catch (const std::exception& error) {
    say(error.what());
    return 1;
  }
  return kWrongArguments;
}
