// Fibers, barriers, warps and shared memory of emu.h.

#include <sys/mman.h>

#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "emu.h"
#include "megalite/api.h"

#if defined(__x86_64__)
// Keeps what a call must keep, and changes stacks: 20 ns, where swapcontext asks the system for 600.
extern "C" void ml_emu_switch(void** save, void* load);
asm(R"(
.text
.globl ml_emu_switch
.hidden ml_emu_switch
.type ml_emu_switch, @function
ml_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ml_emu_switch, .-ml_emu_switch
)");
#else
#include <ucontext.h>
#endif

namespace emu {

Place place;

namespace {

constexpr size_t kStack = 64 << 10;
constexpr size_t kGuard = 4 << 10;
constexpr unsigned kWarp = 32, kMostThreads = 1024;
constexpr size_t kMostShared = 227 << 10;
constexpr unsigned char kPoison = 0xff;  // NaN in every format
constexpr unsigned char kGuarded = 0xa5;

enum class State { ready, barrier, warp, done };

struct Fiber {
  State state = State::done;
  unsigned phase = 0;  // which of its warp's two boards it uses next
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
};

// Where the lanes of a warp lay down what they exchange. Two by turns: nobody can be two calls ahead of another.
struct Board {
  uint64_t value[kWarp];
  uint32_t arrived = 0;
  bool is_read = false;
};

struct Warp {
  Board boards[2];
};

struct Memory {
  std::unique_ptr<unsigned char[]> bytes;
  size_t size = 0;

  explicit Memory(size_t wanted) : bytes(new unsigned char[wanted + kGuard]), size(wanted) {
    std::memset(bytes.get(), kPoison, wanted);
    std::memset(bytes.get() + wanted, kGuarded, kGuard);
  }
  bool is_whole() const {
    return std::all_of(bytes.get() + size, bytes.get() + size + kGuard, [](unsigned char b) { return b == kGuarded; });
  }
};

// One launch at a time, on the thread that calls.
std::vector<Fiber> fibers(kMostThreads);
std::vector<Warp> warps;
std::map<const void*, Memory> shared_memory;
std::unique_ptr<Memory> dynamic_memory;
const std::function<void()>* kernel_of_launch;
unsigned current, threads;
std::string error;
unsigned order_asked = 0;
std::mt19937 shuffler;
#if defined(__x86_64__)
void* scheduler;
#else
ucontext_t scheduler;
#endif

char* stacks() {
  static char* memory = static_cast<char*>(mmap(nullptr, kStack * kMostThreads, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return memory;
}

void to_scheduler() {
#if defined(__x86_64__)
  ml_emu_switch(&fibers[current].stack_pointer, scheduler);
#else
  swapcontext(&fibers[current].context, &scheduler);
#endif
}

// Ends the launch: no fiber runs again.
void fail(const std::string& what) {
  if (error.empty())
    error = "thread " + std::to_string(place.thread.x) + " of block " + std::to_string(place.block.x) + " " + what;
}

void body() {
  (*kernel_of_launch)();
  fibers[current].state = State::done;
  to_scheduler();
}

void begin(unsigned thread) {
  Fiber& fiber = fibers[thread];
  fiber.state = State::ready;
  fiber.phase = 0;
  char* top = stacks() + (thread + 1) * kStack;
#if defined(__x86_64__)
  void** at = reinterpret_cast<void**>(top) - 2;
  *at = reinterpret_cast<void*>(&body);  // where ret goes, at an odd multiple of 8 after it as behind a call
  for (int saved = 0; saved < 6; ++saved) *--at = nullptr;
  fiber.stack_pointer = at;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = top - kStack;
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &body, 0);
#endif
}

void resume(unsigned thread) {
  current = thread;
  place.thread = {thread, 0, 0};
#if defined(__x86_64__)
  ml_emu_switch(&scheduler, fibers[thread].stack_pointer);
#else
  swapcontext(&scheduler, &fibers[thread].context);
#endif
}

void wait(State state) {
  fibers[current].state = state;
  to_scheduler();
}

uint32_t lanes_of(unsigned warp) {
  unsigned count = std::min(kWarp, threads - warp * kWarp);
  return count == kWarp ? 0xffffffffu : (1u << count) - 1;
}

// Opens the barrier when all threads stand at it. False where none can go on.
bool release() {
  unsigned waiting = 0, done = 0;
  for (unsigned t = 0; t < threads; ++t) {
    waiting += fibers[t].state == State::barrier;
    done += fibers[t].state == State::done;
  }
  if (waiting == 0 || waiting + done < threads) return false;
  if (done > 0) {
    error = std::to_string(waiting) + " of " + std::to_string(threads) + " threads wait at a barrier, the others ended";
    return false;
  }
  for (unsigned t = 0; t < threads; ++t) fibers[t].state = State::ready;
  return true;
}

void run_block(const std::vector<unsigned>& order) {
  warps.assign((threads + kWarp - 1) / kWarp, Warp{});
  for (unsigned t = 0; t < threads; ++t) begin(t);
  for (bool going = true; going && error.empty();) {
    going = false;
    for (unsigned t : order)
      if (fibers[t].state == State::ready && error.empty()) {
        resume(t);
        going = true;
      }
    going = release() || going;
  }
  unsigned done = 0;
  for (unsigned t = 0; t < threads; ++t) done += fibers[t].state == State::done;
  if (done < threads && error.empty()) error = "some threads wait for others of their warp that never come";
}

}  // namespace

int launch(unsigned grid, unsigned block, size_t shared_bytes, const std::function<void()>& kernel) {
  error.clear();
  if (grid == 0 || grid > 0x7fffffffu || block == 0 || block > kMostThreads || shared_bytes > kMostShared)
    error = "no such launch: " + std::to_string(grid) + " blocks of " + std::to_string(block) + " threads, " +
            std::to_string(shared_bytes) + " bytes of shared memory";
  kernel_of_launch = &kernel;
  threads = block;
  std::vector<unsigned> order(block);
  for (unsigned t = 0; t < block; ++t) order[t] = order_asked == 1 ? block - 1 - t : t;
  shuffler.seed(order_asked);
  place.block_dim = {block};
  place.grid_dim = {grid};
  for (unsigned b = 0; b < grid && error.empty(); ++b) {
    if (order_asked > 1) std::shuffle(order.begin(), order.end(), shuffler);
    shared_memory.clear();
    dynamic_memory = std::make_unique<Memory>(shared_bytes);
    place.block = {b, 0, 0};
    run_block(order);
    bool whole = dynamic_memory->is_whole();
    for (const auto& [which, memory] : shared_memory) whole = whole && memory.is_whole();
    if (!whole && error.empty()) error = "block " + std::to_string(b) + " wrote behind its shared memory";
  }
  return error.empty() ? 0 : 1;
}

void barrier() { wait(State::barrier); }

unsigned lane() { return current % kWarp; }

uint64_t exchange(unsigned lanes, uint64_t value, unsigned from) {
  Fiber& fiber = fibers[current];
  uint32_t all = lanes_of(current / kWarp);
  if ((lanes & all) != all || from >= kWarp) {
    fail("exchanges with a part of its warp only");
    wait(State::warp);
  }
  Board& board = warps[current / kWarp].boards[fiber.phase];
  fiber.phase ^= 1;
  if (board.is_read) {
    board.arrived = 0;
    board.is_read = false;
  }
  board.value[lane()] = value;
  board.arrived |= 1u << lane();
  if (board.arrived == all) {
    board.is_read = true;
    for (unsigned t = current / kWarp * kWarp; t < std::min(threads, (current / kWarp + 1) * kWarp); ++t)
      if (t != current) fibers[t].state = State::ready;
  } else {
    wait(State::warp);
  }
  // As on a GPU, a lane that is not there gives nothing: the thread keeps its own.
  return all >> from & 1u ? board.value[from] : value;
}

void* shared(const void* which, size_t bytes) {
  return shared_memory.try_emplace(which, bytes).first->second.bytes.get();
}

void* dynamic_shared() { return dynamic_memory->bytes.get(); }

}  // namespace emu

// The order of threads in the launches to come: 0 as they are numbered, 1 backwards, any other seeds a shuffle.
ML_API void ml_emu_order(unsigned order) { emu::order_asked = order; }
// What was wrong with the last launch, or nothing.
ML_API const char* ml_emu_error() { return emu::error.c_str(); }
