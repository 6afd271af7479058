#include "lockstep/data/internal/sentence_grammar.h"

namespace lockstep::inline v0::data {
namespace {

// Words of one feeling also occur in sentences of others (negated, asked about, said with a sneer),
// and the same things happen under all of them: counting characters does not reveal the labels.
constexpr SentenceRule kRules[] = {
    {"who",
     "我|他|她|我妈|我爸|我同学|邻居|我朋友|老师|同事|妹妹|弟弟|老板|小李|室友|表哥|班长|外婆|小张|"
     "师傅"},
    {"other", "他|她|男朋友|女朋友|小王|老板|同桌|室友|队友|姐姐|前台|客服|房东|教练|经理"},
    {"time",
     "今天|昨天|刚才|昨晚|上午|周末|这几天|前天|中午|放学后|下班路上|一大早|半夜|国庆|开学那天|"
     "星期三|过年的时候|这个月"},
    {"place",
     "公司|学校|家里|路上|超市|地铁上|食堂|图书馆|公园|医院|车站|楼下|操场|海边|老家|银行"},
    {"thing",
     "手机|电影|歌|书|衣服|奶茶|火锅|游戏|小猫|蛋糕|相机|耳机|电脑|裙子|鞋子|节目|照片|咖啡|自行车|"
     "包"},
    {"very", "真|好|太|特别|非常|实在|有点|真的很|超级|挺"},
    {"plain",
     "去了{place}|开了个会|买了点菜|坐公交回家|看了会儿书|洗了衣服|写作业|等快递|换了个座位|"
     "打扫房间|"
     "在{place}排队|给{other}打电话|修了{thing}|下雨了|加班到九点|吃了碗面|路过{place}|找{thing}|"
     "见了{other}|收拾行李"},
    {"good",
     "考试过了|拿到奖金了|收到了{thing}|放假了|涨工资了|被录取了|见到老朋友了|球队赢了|雨终于停了|"
     "{other}回来了|抢到票了|{thing}修好了|病好了|{other}请我吃饭|作文得了满分|终于毕业了|找到{"
     "thing}了"},
    {"loss",
     "小猫走丢了|和{other}分手了|考试没过|外婆病了|最好的朋友搬走了|{thing}弄丢了|一个人过生日|"
     "又失眠了|"
     "面试没通过|没有人记得我|{other}不理我了|比赛输了|奶奶不在了|要离开{place}了|"
     "等了一夜也没有消息"},
    {"wrong",
     "有人插队|快递被弄坏了|被骗了钱|被人冤枉了|邻居半夜装修|司机拒载|{other}又迟到了|{other}"
     "骂了我|"
     "又要加班|说好的又变了|{thing}被偷了|工资拖了两个月|{other}把错推给我|打了八遍电话没人接|"
     "被扣了钱"},
    {"dirt",
     "菜里有只虫子|有人随地吐痰|厕所脏得进不去|{other}满嘴谎话|有人脱鞋|垃圾堆了一地|有人乱扔烟头|"
     "油烟味熏人|{other}当面一套背后一套|满屋子烟味|{thing}上一股怪味|广告弹个没完|{other}"
     "只会拍马屁"},
    {"any", "{plain}|{plain}|{plain}|{good}|{loss}|{wrong}|{dirt}"},
    {"like",
     "{very}喜欢这个{thing}|这{thing}{very}好看|{who}唱得{very}好听|我爱死这个{thing}了|这{thing}"
     "怎么看都不够|"
     "还是这里的{thing}最好|{very}想再来一次|给{who}点赞|{who}{very}可爱|{who}笑起来{very}好看|"
     "这{thing}做得{very}用心|偷偷看了{who}好几眼|一听就爱上了|不讨厌，反而越看越顺眼|佩服{who}|"
     "羡慕{who}"},
    {"joy",
     "{very}开心|高兴得睡不着|笑了一整天|{very}幸福|心里美滋滋的|忍不住哼起歌来|乐得合不上嘴|"
     "开心到转圈|"
     "今天是最好的一天|一点也不难过了|想请大家吃糖|哈哈哈哈|激动得手抖|嘴角一直往上翘|值了|耶"},
    {"sad",
     "{very}难过|眼泪停不下来|心里空落落的|{very}想哭|不想说话|胸口堵得慌|一个人坐了很久|{very}"
     "伤心|"
     "一点也不开心|笑不出来|什么都不想做|好像没人在乎我|越想越委屈|鼻子一酸|只剩我一个人了|"
     "不是生气，就是{very}难过"},
    {"anger",
     "气死我了|{very}生气|火一下就上来了|凭什么|还讲不讲理|太过分了|忍不了了|气得手抖|真想骂人|"
     "你们给我等着|不难过，就是{very}生气|有完没完|把我当什么了|再这样我就投诉|谁受得了|"
     "拍了桌子就走"},
    {"disgust",
     "{very}恶心|看着就想吐|{very}讨厌|{very}烦{who}|离我远点|再也不来了|受不了这种人|{very}嫌弃|"
     "一眼都不想多看|什么素质|倒胃口|假得要命|白给我都不要|一点也不喜欢|翻了个白眼|脏死了"},
    {"ask",
     "你喜欢哪个{thing}|{who}生气了吗|{time}开心吗|{place}怎么走|几点到{place}|{thing}多少钱|"
     "{who}{time}来吗|谁知道{who}为什么难过|讨厌的人怎么相处|要不要带伞|“高兴”的反义词是什么|"
     "恶心想吐要看哪个科|有没有人一起去{place}"},
    {"tell",
     "{who}{time}{plain}|{time}气温十八度|会议改到{time}|{who}说{other}很高兴|听说{other}哭了|"
     "课文讲了一个伤心的故事|{thing}在桌上|{place}十点关门|转发一条消息|电影的名字叫愤怒的人|"
     "下一站是{place}|明天交作业|{thing}有三种颜色|先这样吧|收到，谢谢|报名到{time}为止"},
    {"lead",
     "|||||{who}{time}{any}，|{time}{any}，|{time}，|{who}说，|唉，|哎，|天哪，|其实|说真的，|"},
    {"0",
     "{ask}|{tell}|{tell}|{tell}，{tell}|{time}{any}，{ask}|{who}{any}，{tell}|{time}{plain}，{"
     "plain}"},
    {"1",
     "{lead}{like}|{lead}{like}，{like}|{time}{any}，{like}|{like}，{tell}|{like}，虽然{wrong}"},
    {"2",
     "{lead}{sad}|{loss}，{sad}|{time}{loss}|{who}{time}{loss}，{sad}|{time}{any}，{sad}|{good}"
     "，可是{sad}|{loss}，{loss}"},
    {"3",
     "{lead}{disgust}|{dirt}，{disgust}|{place}{dirt}|{who}{time}{any}，{disgust}|{dirt}，{dirt}|"
     "真行，{dirt}"},
    {"4",
     "{lead}{anger}|{wrong}，{anger}|{time}{wrong}，{anger}|太好了，{wrong}|真棒啊，{wrong}，{"
     "anger}|{wrong}，{wrong}|{dirt}，{anger}"},
    {"5",
     "{lead}{joy}|{good}，{joy}|{time}{good}|太好了，{good}|{who}{time}{good}，{joy}|{time}{any}，{"
     "joy}|虽然{wrong}，还是{joy}"},
    {"*", "||||||。|。|！|！！|？|～|……|啊|了啊|呀|吧|，我也是服了|，没想到吧|，不说了|，就这样"},
};

}  // namespace

std::span<const SentenceRule> sentence_rules() {
  return kRules;
}

}  // namespace lockstep::inline v0::data
