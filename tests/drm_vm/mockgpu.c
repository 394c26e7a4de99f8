// SPDX-License-Identifier: GPL-2.0
// A GPU driver without a GPU: one ring on the kernel's own DRM scheduler, so that its tracepoints really fire.
// Writing a number to /dev/mockgpu submits that many jobs from the writing thread and waits for the last of them.
// A timer ends each job JOB_MS after the scheduler handed it over; two may run at a time.
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <drm/gpu_scheduler.h>

#define JOB_MS 2
#define AT_ONCE 2

struct ring_fence {
	struct dma_fence base;
	struct hrtimer timer;
};

static struct drm_gpu_scheduler ring;
static struct drm_sched_entity queue;
static DEFINE_SPINLOCK(fence_lock);
static DEFINE_MUTEX(submit_lock);
static u64 fence_context;
static u64 fence_number;

static const char *driver_name(struct dma_fence *fence)
{
	return "mockgpu";
}

static const char *timeline_name(struct dma_fence *fence)
{
	return "ring0";
}

static const struct dma_fence_ops fence_ops = {
	.get_driver_name = driver_name,
	.get_timeline_name = timeline_name,
};

static enum hrtimer_restart finished(struct hrtimer *timer)
{
	struct ring_fence *fence = container_of(timer, struct ring_fence, timer);

	dma_fence_signal(&fence->base);
	dma_fence_put(&fence->base);
	return HRTIMER_NORESTART;
}

static struct dma_fence *run_job(struct drm_sched_job *job)
{
	struct ring_fence *fence = kzalloc(sizeof(*fence), GFP_KERNEL);

	if (!fence)
		return ERR_PTR(-ENOMEM);
	dma_fence_init(&fence->base, &fence_ops, &fence_lock, fence_context, ++fence_number);
	dma_fence_get(&fence->base);	/* the timer's */
	hrtimer_init(&fence->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	fence->timer.function = finished;
	hrtimer_start(&fence->timer, ms_to_ktime(JOB_MS), HRTIMER_MODE_REL);
	return &fence->base;
}

static enum drm_gpu_sched_stat timed_out(struct drm_sched_job *job)
{
	return DRM_GPU_SCHED_STAT_NOMINAL;
}

static void free_job(struct drm_sched_job *job)
{
	drm_sched_job_cleanup(job);
	kfree(job);
}

static const struct drm_sched_backend_ops ring_ops = {
	.run_job = run_job,
	.timedout_job = timed_out,
	.free_job = free_job,
};

static ssize_t submit(struct file *file, const char __user *text, size_t length, loff_t *offset)
{
	struct dma_fence *last = NULL;
	int jobs, error = kstrtoint_from_user(text, length, 0, &jobs);

	if (error)
		return error;
	mutex_lock(&submit_lock);
	while (jobs-- > 0) {
		struct drm_sched_job *job = kzalloc(sizeof(*job), GFP_KERNEL);

		error = job ? drm_sched_job_init(job, &queue, NULL) : -ENOMEM;
		if (error) {
			kfree(job);
			break;
		}
		drm_sched_job_arm(job);
		dma_fence_put(last);
		last = dma_fence_get(&job->s_fence->finished);
		drm_sched_entity_push_job(job);
	}
	mutex_unlock(&submit_lock);
	if (last)
		dma_fence_wait(last, false);
	dma_fence_put(last);
	return error ? error : length;
}

static const struct file_operations file_ops = {
	.owner = THIS_MODULE,
	.write = submit,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "mockgpu",
	.fops = &file_ops,
};

static int __init begin(void)
{
	struct drm_gpu_scheduler *rings[] = { &ring };
	const struct drm_sched_init_args arguments = {
		.ops = &ring_ops,
		.credit_limit = AT_ONCE,
		.timeout = MAX_SCHEDULE_TIMEOUT,
		.name = "ring0",
	};
	int error = drm_sched_init(&ring, &arguments);

	if (error)
		return error;
	fence_context = dma_fence_context_alloc(1);
	error = drm_sched_entity_init(&queue, DRM_SCHED_PRIORITY_NORMAL, rings, 1, NULL);
	if (!error)
		error = misc_register(&device);
	if (error)
		drm_sched_fini(&ring);
	return error;
}
module_init(begin);

MODULE_DESCRIPTION("Mock driver for tests of GPU scheduler tracing");
MODULE_LICENSE("GPL");
